#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "report/bootstrap.h"
#include "report/layout.h"
#include "report/passages.h"
#include "store/results.h"

namespace kvlab::report {

/// Passages that a verdict needs, and an interval of a metric that is not known by position: fewer
/// say too little about another text.
inline constexpr int64_t kNeededPassages = 16;

/// Passages that an interval needs where blocks of positions are resampled too. Whole models, whose
/// every position is measured, need none.
inline constexpr int64_t kFewestPassages = 4;

/// One value of a table: a mean over cells.
struct Value {
  double mean = 0;  // NaN where there is no number
  // 95% interval, resampling passages and, within them, blocks of positions where the metric is
  // known by position; never heads or layers. NaN where there are too few passages. Of a share of
  // trials Wilson's, however many passages there are.
  double low = std::numeric_limits<double>::quiet_NaN();
  double high = std::numeric_limits<double>::quiet_NaN();
  std::map<std::string, Sampled> passages;  // the mean of each passage
  double trials = 0;    // of a share of trials, whose interval is Wilson's: each trial once; else 0
  int64_t planned = 0;  // rows of the summary that belong here
  int64_t complete = 0;     // of these
  int64_t numbers = 0;      // of these, with a number: what the mean is over
  int64_t cells = 0;        // behind these numbers, each once
  bool is_partial = false;  // over fewer cells than planned, or over less data than its neighbours
};

/// One row of a table.
struct Line {
  std::vector<std::string> keys;  // one for each of Layout::rows
  std::vector<const store::SummaryRow*> rows;
  std::vector<Value> values;  // one for each of Grid::columns
  int64_t cells = 0;          // with a number in some column, each once
  bool is_exact = false;      // nothing is quantized: no rival for the best value
};

struct Column {
  std::string metric;
  std::vector<std::string> keys;  // one for each of Layout::cols
};

/// A table before it is written out.
struct Grid {
  Layout layout;
  std::vector<Column> columns;
  std::vector<Line> lines;
};

/// Sorts the rows of the summary into lines and columns and averages. Cells of another code version
/// than the file's own are left out.
Grid make_grid(const store::Results& results, const Layout& layout);

/// Whether the row's cell is complete but of another code version than the file.
bool is_stale(const store::Results& results, const store::SummaryRow& row);

/// The row's cell if its numbers count: complete and not stale. Else nullptr.
const store::CellResult* complete_cell(const store::Results& results, const store::SummaryRow& row);

/// Resamples numbers of passages; nothing where there are too few for it. `whole_models`: of these.
std::optional<Interval> interval_of(const std::vector<Sampled>& passages, bool whole_models);

/// The mean over the rows' complete cells, those that stand there under several names of one
/// dataset once, with an interval where there are enough passages.
Value mean_of(const store::Results& results, const Passages& passages,
              const std::vector<const store::SummaryRow*>& rows, const std::string& metric);

/// a − b of each passage that both values have.
std::vector<Sampled> paired_differences(const Value& a, const Value& b);

/// "kivi / 128": what a note calls a line.
std::string name_of(const Line& line);

/// The row's entry in a column of `dimensions()`.
nlohmann::json entry_of(const store::Results& results, const store::SummaryRow& row,
                        const std::string& dimension);

/// The configuration of a row's cell; null where there is none.
nlohmann::json config_of(const store::Results& results, const store::SummaryRow& row);

}  // namespace kvlab::report
