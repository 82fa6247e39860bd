#include "report/grid.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <tuple>

#include "base/names.h"
#include "metrics_catalog/catalog.h"
#include "report/passages.h"
#include "report/share.h"
#include "store/needle.h"
#include "store/summary.h"

namespace kvlab::report {
namespace {

using nlohmann::json;
using Rows = std::vector<const store::SummaryRow*>;
using Words = std::vector<std::string>;

std::vector<json> entries_of(const store::Results& results, const store::SummaryRow& row,
                             const Words& dimensions) {
  std::vector<json> entries;
  for (const std::string& name : dimensions) entries.push_back(entry_of(results, row, name));
  return entries;
}

/// Entries that are all numbers ascend; others stay in the order in which they first appear.
void order_entries(std::vector<std::vector<json>>* keys, size_t dimensions) {
  std::vector<std::map<json, size_t>> ranks(dimensions);
  for (size_t i = 0; i < dimensions; ++i) {
    std::vector<json> seen;
    for (const auto& key : *keys) {
      if (std::find(seen.begin(), seen.end(), key[i]) == seen.end()) seen.push_back(key[i]);
    }
    if (std::all_of(seen.begin(), seen.end(), [](const json& v) { return v.is_number(); })) {
      std::sort(seen.begin(), seen.end());
    }
    for (const json& entry : seen) ranks[i].emplace(entry, ranks[i].size());
  }
  std::stable_sort(keys->begin(), keys->end(), [&](const auto& a, const auto& b) {
    for (size_t i = 0; i < dimensions; ++i) {
      const size_t left = ranks[i].at(a[i]);
      const size_t right = ranks[i].at(b[i]);
      if (left != right) return left < right;
    }
    return false;
  });
}

Words texts_of(const std::vector<json>& entries) {
  Words texts;
  for (const json& entry : entries) texts.push_back(store::axis_text(entry));
  return texts;
}

/// Distinct keys of the rows, ordered, each with its rows.
std::vector<std::pair<std::vector<json>, Rows>> group_rows(const store::Results& results,
                                                           const Rows& rows,
                                                           const Words& dimensions) {
  std::map<std::vector<json>, Rows> members;
  std::vector<std::vector<json>> keys;
  for (const store::SummaryRow* row : rows) {
    std::vector<json> key = entries_of(results, *row, dimensions);
    Rows& list = members[key];
    if (list.empty()) keys.push_back(std::move(key));
    list.push_back(row);
  }
  order_entries(&keys, dimensions.size());
  std::vector<std::pair<std::vector<json>, Rows>> groups;
  for (auto& key : keys) groups.emplace_back(key, std::move(members[key]));
  return groups;
}

/// Whether the row has a number for the metric: its cell is complete, and the value no NaN.
bool has_number(const store::Results& results, const store::SummaryRow& row,
                const std::string& metric) {
  const store::CellResult* cell = complete_cell(results, row);
  if (!cell) return false;
  const auto found = cell->scalars.find(metric);
  return found != cell->scalars.end() && !std::isnan(found->second);
}

/// Which of the averaged data a value covers.
std::set<std::vector<json>> coverage(const store::Results& results, const Rows& rows,
                                     const std::string& metric, const Words& averaged) {
  std::set<std::vector<json>> covered;
  for (const store::SummaryRow* row : rows) {
    if (has_number(results, *row, metric)) covered.insert(entries_of(results, *row, averaged));
  }
  return covered;
}

/// Share of a value's complete rows that have a number.
double share_of(const Value& value) {
  return value.complete == 0
             ? 0
             : static_cast<double>(value.numbers) / static_cast<double>(value.complete);
}

/// Cells of the line's rows with a number for one of the metrics, each once.
int64_t count_cells(const store::Results& results, const Rows& rows, const Words& metrics) {
  std::set<std::string> cells;
  for (const store::SummaryRow* row : rows) {
    if (std::any_of(metrics.begin(), metrics.end(),
                    [&](const std::string& metric) { return has_number(results, *row, metric); })) {
      cells.insert(row->cell);
    }
  }
  return static_cast<int64_t>(cells.size());
}

bool quantizes_nothing(const store::Results& results, const Rows& rows) {
  for (const store::SummaryRow* row : rows) {
    if (!complete_cell(results, *row)) continue;
    const json config = config_of(results, *row);
    for (const char* side : {"key", "value"}) {
      const json::json_pointer kind(std::string("/method/") + side + "/codec/kind");
      if (!config.is_object() || config.value(kind, std::string()) != "passthrough") return false;
    }
  }
  return true;
}

/// What the values of a column average over, which its rows should share: data and layers, but for
/// what tells rows and columns apart. A text has datasets of its own, and so has a row of a needle
/// task, a length or a depth.
Words averaged_over(const Layout& layout) {
  const auto among = [](const Words& words, std::string_view name) {
    return std::find(words.begin(), words.end(), name) != words.end();
  };
  const auto named = [&](std::string_view name) {
    return among(layout.rows, name) || among(layout.cols, name);
  };
  const auto& needle = store::kNeedleColumns;
  Words averaged;
  if (std::any_of(needle.begin(), needle.end(),
                  [&](const char* name) { return among(layout.rows, name); })) {
    averaged.assign(needle.begin(), needle.end());
  } else if (!named("text")) {
    averaged.emplace_back("dataset");
  }
  averaged.emplace_back("layer");
  std::erase_if(averaged, named);
  return averaged;
}

/// Fills in the values of one column.
void fill_column(const store::Results& results, const Passages& passages_of, Grid* grid,
                 const std::vector<json>& key, const std::string& metric) {
  const Words averaged = averaged_over(grid->layout);
  std::vector<std::set<std::vector<json>>> covered;
  std::set<std::vector<json>> widest;
  double largest_share = 0;
  for (Line& line : grid->lines) {
    Rows rows;
    for (const store::SummaryRow* row : line.rows) {
      if (entries_of(results, *row, grid->layout.cols) == key) rows.push_back(row);
    }
    line.values.push_back(mean_of(results, passages_of, rows, metric));
    covered.push_back(coverage(results, rows, metric, averaged));
    widest.insert(covered.back().begin(), covered.back().end());
    largest_share = std::max(largest_share, share_of(line.values.back()));
  }
  for (size_t i = 0; i < grid->lines.size(); ++i) {
    Value& value = grid->lines[i].values.back();
    value.is_partial =
        value.numbers > 0 && (value.complete < value.planned || covered[i].size() < widest.size() ||
                              share_of(value) < largest_share);
  }
}

/// Best first; lines without a number last, in the experiment's order.
void sort_lines(Grid* grid, const std::string& metric) {
  size_t column = 0;
  while (column < grid->columns.size() && grid->columns[column].metric != metric) ++column;
  if (column == grid->columns.size()) return;
  const double sign = metrics::larger_is_better(metric) ? -1 : 1;
  const auto rank = [&](const Line& line) {
    const double mean = line.values[column].mean;
    return std::isnan(mean) ? std::numeric_limits<double>::infinity() : sign * mean;
  };
  std::stable_sort(grid->lines.begin(), grid->lines.end(), [&](const Line& a, const Line& b) {
    const bool a_empty = std::isnan(a.values[column].mean);
    const bool b_empty = std::isnan(b.values[column].mean);
    return a_empty != b_empty ? b_empty : rank(a) < rank(b);
  });
}

}  // namespace

bool is_stale(const store::Results& results, const store::SummaryRow& row) {
  const store::CellResult* cell = store::cell_of(results, row);
  const std::string own = results.attribute("code_version");
  return cell && cell->status == "complete" && !own.empty() && !cell->code_version.empty() &&
         cell->code_version != own;
}

const store::CellResult* complete_cell(const store::Results& results,
                                       const store::SummaryRow& row) {
  const store::CellResult* cell = store::cell_of(results, row);
  return cell && cell->status == "complete" && !is_stale(results, row) ? cell : nullptr;
}

std::optional<Interval> interval_of(const std::vector<Sampled>& passages, bool whole_models) {
  const auto all = [&](const auto& holds) {
    return !passages.empty() && std::all_of(passages.begin(), passages.end(), holds);
  };
  if (!all([](const Sampled& one) { return std::isfinite(one.value); })) return std::nullopt;
  const auto count = static_cast<int64_t>(passages.size());
  const bool by_position = all([](const Sampled& one) { return !one.replicates.empty(); });
  const int64_t needed = !by_position ? kNeededPassages : whole_models ? 1 : kFewestPassages;
  if (count < needed) return std::nullopt;
  const bool varies = [&] {
    for (const Sampled& one : passages) {
      for (const double replicate : one.replicates) {
        if (replicate != one.replicates.front()) return true;
      }
    }
    return count > 1;
  }();
  // One block of one passage is nothing to resample.
  if (!varies) return std::nullopt;
  return bootstrap(passages);
}

Value mean_of(const store::Results& results, const Passages& passages_of, const Rows& rows,
              const std::string& metric) {
  Value value;
  value.cells = count_cells(results, rows, {metric});
  double sum = 0;
  bool whole_models = true;
  std::map<std::string, std::vector<Sampled>> numbers;
  std::map<std::string, double> trials;
  std::set<std::tuple<std::string, std::string, std::vector<json>>> met;
  for (const store::SummaryRow* row : rows) {
    // The same data under another name says nothing more.
    if (!met.emplace(row->cell, row->label, row->sweep).second) continue;
    ++value.planned;
    const store::CellResult* cell = complete_cell(results, *row);
    if (!cell) continue;
    ++value.complete;
    Sampled number = sampled(*cell, metric);
    if (std::isnan(number.value)) continue;
    ++value.numbers;
    sum += number.value;
    whole_models = whole_models && row->layer < 0;
    const std::string& passage = passages_of.of(*row);
    trials[passage] = trials_of(*cell, metric);
    numbers[passage].push_back(std::move(number));
  }
  value.mean = value.numbers > 0 ? sum / static_cast<double>(value.numbers)
                                 : std::numeric_limits<double>::quiet_NaN();
  std::vector<Sampled> passages;
  double successes = 0;
  for (const auto& [passage, of_passage] : numbers) {
    passages.push_back(value.passages[passage] = mean_of(of_passage));
    value.trials += trials[passage];
    successes += trials[passage] * passages.back().value;
  }
  const bool is_share =
      !trials.empty() && std::all_of(trials.begin(), trials.end(),
                                     [](const auto& of_passage) { return of_passage.second > 0; });
  if (!is_share) value.trials = 0;
  if (is_share) {
    // A trial that several methods took is one trial: its share of them varies less than one of
    // theirs does, so the interval is no narrower than it should be.
    value.mean = successes / value.trials;
    std::tie(value.low, value.high) = wilson(value.mean, value.trials);
  } else if (const auto interval = interval_of(passages, whole_models)) {
    value.low = interval->low;
    value.high = interval->high;
  }
  return value;
}

std::vector<Sampled> paired_differences(const Value& a, const Value& b) {
  std::vector<Sampled> differences;
  for (const auto& [passage, number] : a.passages) {
    const auto other = b.passages.find(passage);
    if (other == b.passages.end()) continue;
    differences.push_back(
        Sampled::of([](const std::vector<double>& both) { return both[0] - both[1]; },
                    {&number, &other->second}));
  }
  return differences;
}

std::string name_of(const Line& line) { return join(line.keys, " / "); }

nlohmann::json entry_of(const store::Results& results, const store::SummaryRow& row,
                        const std::string& dimension) {
  if (dimension == "method") return row.method;
  if (dimension == "label") return row.label;
  if (dimension == "dataset") return row.dataset;
  if (dimension == "text") return row.text;
  if (dimension == "layer") return row.layer;
  if (dimension == "seed") return row.seed;
  if (dimension == "backend") return row.backend;
  if (const auto& names = store::kNeedleColumns;
      std::find(names.begin(), names.end(), dimension) != names.end()) {
    return store::needle_entry(row, dimension);
  }
  for (size_t axis = 0; axis < std::min(results.axes.size(), row.sweep.size()); ++axis) {
    if (results.axes[axis] == dimension) return row.sweep[axis];
  }
  return nullptr;
}

nlohmann::json config_of(const store::Results& results, const store::SummaryRow& row) {
  const store::CellResult* cell = store::cell_of(results, row);
  json config = cell ? json::parse(cell->config, nullptr, /*allow_exceptions=*/false) : json();
  return config.is_object() ? config : json();
}

Grid make_grid(const store::Results& results, const Layout& layout) {
  Rows rows;
  for (const store::SummaryRow& row : results.rows) rows.push_back(&row);
  std::stable_sort(rows.begin(), rows.end(),
                   [](const auto* a, const auto* b) { return a->row < b->row; });

  Grid grid;
  grid.layout = layout;
  for (auto& [key, members] : group_rows(results, rows, layout.rows)) {
    Line line;
    line.keys = texts_of(key);
    line.rows = std::move(members);
    line.cells = count_cells(results, line.rows, layout.metrics);
    line.is_exact = quantizes_nothing(results, line.rows);
    grid.lines.push_back(std::move(line));
  }
  const Passages passages(results);
  for (const auto& [key, members] : group_rows(results, rows, layout.cols)) {
    for (const std::string& metric : layout.metrics) {
      grid.columns.push_back({metric, texts_of(key)});
      fill_column(results, passages, &grid, key, metric);
    }
  }
  if (layout.sort_by) sort_lines(&grid, *layout.sort_by);
  return grid;
}

}  // namespace kvlab::report
