#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/names.h"
#include "report/difference.h"
#include "report/grid.h"
#include "report/layout.h"
#include "report/number_text.h"
#include "report/render.h"
#include "report/text_width.h"

namespace kvlab::report {
namespace {

using Words = std::vector<std::string>;

bool contains(const Words& words, const std::string& word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

/// What a line is shown of where nothing is asked for.
Words shown_metrics(const Difference& difference, const std::vector<Limit>& limits) {
  Words measured;
  for (const Change& change : difference.changes) add_once(&measured, change.metric);
  Words names = default_metrics(measured);
  for (const Limit& limit : limits) add_once(&names, limit.metric);
  return names;
}

std::string interval_text(const Change& change) {
  if (std::isnan(change.low)) return "-";
  return fmt::format("{} … {}", short_number(change.low), short_number(change.high));
}

/// JSON has no word for what is no number.
nlohmann::ordered_json number(double value) {
  return std::isfinite(value) ? nlohmann::ordered_json(value) : nlohmann::ordered_json();
}

}  // namespace

std::string difference_text(const Difference& difference, const std::vector<Limit>& limits,
                            const std::vector<std::string>& metrics) {
  const Words shown = metrics.empty() ? shown_metrics(difference, limits) : metrics;
  Sheet sheet;
  const bool has_points = std::any_of(difference.changes.begin(), difference.changes.end(),
                                      [](const Change& change) { return !change.point.empty(); });
  const auto column = [&](const char* heading, bool is_text) {
    sheet.columns.push_back({heading, heading, is_text});
  };
  column("label", true);
  if (has_points) column("point", true);
  column("metric", true);
  for (const char* heading :
       {"A", "B", "B − A", "95% interval", "B / A", "worst cell by", "cells"}) {
    column(heading, false);
  }
  column("worst cell", true);
  size_t equal = 0, compared = 0;
  bool lacks_interval = false;
  for (const Change& change : difference.changes) {
    if (!contains(shown, change.metric)) continue;
    ++compared;
    lacks_interval = lacks_interval || std::isnan(change.low);
    const bool is_equal = change.a == change.b && change.worst == 0;
    if (is_equal) {
      ++equal;
      continue;
    }
    std::vector<Entry> entries;
    const auto add = [&](const std::string& text) { entries.push_back({one_line(text), text}); };
    add(change.label);
    if (has_points) add(change.point);
    add(change.metric);
    add(short_number(change.a));
    add(short_number(change.b));
    add(short_number(change.b - change.a));
    add(interval_text(change));
    add(short_number(change.b / change.a));
    add(short_number(change.worst));
    add(fmt::format("{}", change.cells));
    add(change.worst_cell);
    sheet.lines.push_back(std::move(entries));
  }
  if (equal > 0) {
    sheet.notes.push_back(fmt::format("equal in every cell: {} of {} of a label and a metric",
                                      equal, counted(compared, "line")));
  }
  if (lacks_interval && !sheet.lines.empty()) {
    sheet.notes.push_back(fmt::format(
        "intervals resample passages and need {} of them, {} where a metric is known by "
        "position",
        kNeededPassages, kFewestPassages));
  }
  sheet.notes.insert(sheet.notes.end(), difference.notes.begin(), difference.notes.end());
  for (const std::string& failure : difference.failures) {
    sheet.notes.push_back("worse: " + failure);
  }
  if (sheet.lines.empty()) return join(sheet.notes, "\n") + "\n";
  return render(sheet, "text", false);
}

nlohmann::ordered_json difference_json(const Difference& difference) {
  nlohmann::ordered_json changes = nlohmann::ordered_json::array();
  for (const Change& change : difference.changes) {
    changes.push_back({{"label", change.label},
                       {"point", change.point},
                       {"metric", change.metric},
                       {"cells", change.cells},
                       {"passages", change.passages},
                       {"a", number(change.a)},
                       {"b", number(change.b)},
                       {"difference", number(change.b - change.a)},
                       {"low", number(change.low)},
                       {"high", number(change.high)},
                       {"worst", number(change.worst)},
                       {"worst_share", number(change.worst_share)},
                       {"worst_cell", change.worst_cell}});
  }
  return {{"changes", changes}, {"notes", difference.notes}, {"failures", difference.failures}};
}

}  // namespace kvlab::report
