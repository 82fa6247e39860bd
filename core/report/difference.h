#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "report/bootstrap.h"
#include "store/results.h"

namespace kvlab::report {

/// A limit of `kvlab diff --fail-above`: no cell's metric may be worse by more.
struct Limit {
  std::string metric;
  double most = 0;           // in the metric's unit, or a share of A's value
  bool is_relative = false;  // written with %
};

/// "decode_us=5%", "wo_rel=0.01". Throws Error where the text is none.
Limit parse_limit(const std::string& text);

/// What two files may differ in.
struct Allowed {
  bool inputs = false;  // content of datasets and calibrations, which tokens of them, probes
  bool gpu = false;     // the device that times and the backend cuda used
};

/// One metric of one line (label and sweep point) in both files, over paired cells.
struct Change {
  std::string label;
  std::string point;  // "group 32, window.recent 128", empty without a sweep
  std::string metric;
  int64_t cells = 0;
  int64_t lost = 0;  // cells in which B has NaN and A a number; in none of the means
  int64_t passages = 0;
  double a = 0, b = 0;       // means over the pairs
  double low = 0, high = 0;  // 95% interval of the mean of b − a; NaN with too few passages
  double worst = 0;          // largest b − a in the direction that is worse; below zero: better
  double worst_share = 0;    // the same as a share of a
  std::string worst_cell;    // "eval_austen, layer 10"
};

struct Difference {
  std::vector<Change> changes;        // in the experiment's order
  std::vector<std::string> notes;     // what was not compared, and why
  std::vector<std::string> failures;  // a sentence for each limit that is broken, and for lost rows
};

/// Compares B with A cell by cell: rows with the same label, dataset, layer, seed, backend and
/// sweep point. Throws Error where no cells pair, or where inputs or GPUs differ and are not
/// allowed to.
Difference difference(const store::Results& a, const store::Results& b, const Allowed& allowed,
                      const std::vector<Limit>& limits);

/// Throws Error, in the name of an option, where a metric is in no change: measured in one file
/// alone, or none that there is.
void check_metric(const Difference& difference, const std::string& name, const char* option);

/// A line for each change of these metrics (empty: the default table's) that both files have.
/// `names`: of the files.
std::string difference_text(const Difference& difference, const std::vector<Limit>& limits,
                            const std::vector<std::string>& metrics);
nlohmann::ordered_json difference_json(const Difference& difference);

}  // namespace kvlab::report
