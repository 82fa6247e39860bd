#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "report/claims.h"
#include "store/results.h"

namespace kvlab::report {

/// A claim's effect on a part of its pairs.
struct Part {
  std::string name;
  int64_t passages = 0;
  double effect = 0;
  double low = 0, high = 0;  // 95% interval, NaN where there are too few passages
};

/// What a results file says of one claim. Effects are logarithms of ratios: below zero where the
/// metric of `of` is smaller. NaN where there is no number.
struct Finding {
  Claim claim;
  std::string verdict;       // upheld | reversed | undecided
  std::string reason;        // why undecided; else empty
  double effect = 0;         // mean over passages of the mean over a passage's pairs
  double low = 0, high = 0;  // 95% interval, where there are enough passages
  double p = 0;              // corrected over the table, where there are enough passages
  int64_t pairs = 0;
  int64_t left_out = 0;  // pairs without a ratio: the metric is zero, infinite or not measured
  int64_t passages = 0;
  int64_t layers = 0;
  // Where there are several, apart: texts, say of one author each, and pairs of labels, whose
  // shared settings differ. What a pooled effect hides.
  std::vector<Part> by_text, by_rows;
  std::vector<std::string> differing;  // settings in which the rows differ beside the claim's own
};

/// Whether the part's interval lies beyond 1 on the other side than the whole's effect.
bool is_flipped(const Part& part, const Finding& whole);

/// Compares paired rows, each claim by itself, then corrects over all claims with enough passages
/// (Holm). Intervals resample passages and, within them, blocks of positions where the metric is
/// known by position, never heads or layers: those of one text are not independent.
std::vector<Finding> judge(const store::Results& results, const std::vector<Claim>& claims);

/// A line a claim, then what each one compares and why it is undecided.
std::string findings_text(const std::vector<Finding>& findings);
nlohmann::ordered_json findings_json(const std::vector<Finding>& findings);

}  // namespace kvlab::report
