#include "report/ranks.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "metrics_catalog/catalog.h"

namespace kvlab::report {
namespace {

/// Whether a smaller (or larger) value of the metric makes a better method.
bool has_a_best(const std::string& metric) {
  const metrics::MetricInfo* info = metrics::find_metric(metric);
  return info && info->measure != "tni";
}

/// Whether two means differ by more than their passages do, or by more than their trials, each of
/// which is a text of its own; nothing where there are too few.
std::optional<bool> differ_by_passages(const Value& a, const Value& b) {
  const std::vector<Sampled> differences = paired_differences(a, b);
  const bool by_trials = a.trials > 0 && b.trials > 0;
  const double count =
      by_trials ? std::min(a.trials, b.trials) : static_cast<double>(differences.size());
  if (count < static_cast<double>(kNeededPassages)) return std::nullopt;
  // Tasks and depths are chosen, so that trials are drawn within each and not they themselves.
  const auto interval = by_trials ? interval_of({mean_of(differences)}, /*whole_models=*/true)
                                  : interval_of(differences, /*whole_models=*/false);
  if (!interval) return std::nullopt;
  return interval->low > 0 || interval->high < 0;
}

class ColumnRanking {
 public:
  ColumnRanking(const Grid& grid, size_t column, bool* were_tested)
      : grid_(grid),
        column_(column),
        sign_(metrics::find_metric(grid.columns[column].metric)->larger_is_better ? -1 : 1),
        were_tested_(were_tested) {}

  std::vector<Rank> run() {
    std::vector<Rank> ranks(grid_.lines.size(), Rank::none);
    std::vector<size_t> left;
    for (size_t i = 0; i < grid_.lines.size(); ++i) {
      if (!grid_.lines[i].is_exact && !value(i).is_partial && std::isfinite(value(i).mean)) {
        left.push_back(i);
      }
    }
    for (const Rank rank : {Rank::best, Rank::second}) {
      std::vector<size_t> rest;
      for (const size_t i : left) {
        if (ties_with_best(i, left)) {
          ranks[i] = rank;
        } else {
          rest.push_back(i);
        }
      }
      // A column in which all are alike has no best.
      if (rank == Rank::best && rest.empty()) return {grid_.lines.size(), Rank::none};
      left = std::move(rest);
    }
    return ranks;
  }

 private:
  const Value& value(size_t line) const { return grid_.lines[line].values[column_]; }

  bool ties_with_best(size_t line, const std::vector<size_t>& rivals) {
    size_t best = line;
    for (const size_t rival : rivals) {
      if (sign_ * value(rival).mean < sign_ * value(best).mean) best = rival;
    }
    if (value(line).mean == value(best).mean) return true;
    const auto differ = differ_by_passages(value(line), value(best));
    *were_tested_ = *were_tested_ || differ.has_value();
    return differ && !*differ;
  }

  const Grid& grid_;
  size_t column_;
  double sign_;
  bool* were_tested_;
};

}  // namespace

Ranks rank_lines(const Grid& grid) {
  Ranks ranks;
  for (size_t column = 0; column < grid.columns.size(); ++column) {
    ranks.by_column.push_back(has_a_best(grid.columns[column].metric)
                                  ? ColumnRanking(grid, column, &ranks.were_tested).run()
                                  : std::vector<Rank>(grid.lines.size(), Rank::none));
  }
  return ranks;
}

}  // namespace kvlab::report
