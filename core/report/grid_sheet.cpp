#include "report/grid_sheet.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/names.h"
#include "report/against.h"
#include "report/number_text.h"
#include "report/ranks.h"
#include "report/text_width.h"

namespace kvlab::report {
namespace {

/// What the brackets of --against hold.
std::string note_of_comparison(const Grid& grid) {
  bool is_paired = false;
  for (size_t line = 0; line < grid.lines.size(); ++line) {
    for (size_t column = 0; column < grid.columns.size(); ++column) {
      is_paired = is_paired || std::isfinite(off(grid, line, column).low);
    }
  }
  const std::string note = "in brackets: off " + grid.layout.against;
  if (!is_paired) return note + ", without intervals: too few passages are of both";
  return note +
         ", paired by passage, as a share of its mean, which ± takes as exact; not "
         "distinguishable: the 95% interval covers zero";
}

using For = SheetColumn::For;

bool has_interval(const Value& value) { return !std::isnan(value.low); }

bool is_resampled(const Value& value) { return has_interval(value) && value.trials == 0; }

/// "0.1750 ±0.023"; a share, which may stand at an end of its interval, "0.83 [0.66, 0.93]".
std::string text_of(const Value& value) {
  if (value.trials > 0) {
    return fmt::format("{:.2f} [{:.2f}, {:.2f}]", value.mean, value.low, value.high);
  }
  const std::string mean = short_number(value.mean);
  return has_interval(value) ? mean + " ±" + two_digits((value.high - value.low) / 2) : mean;
}

/// What the ± of a table is; nothing where it has none.
void add_resampling(const Grid& grid, std::vector<std::string>* notes) {
  size_t fewest = std::numeric_limits<size_t>::max();
  for (const Line& line : grid.lines) {
    for (const Value& value : line.values) {
      if (is_resampled(value)) fewest = std::min(fewest, value.passages.size());
    }
  }
  if (fewest == std::numeric_limits<size_t>::max()) return;
  notes->emplace_back(
      "±: half of the 95% interval that resampling the passages gives, for metrics by position "
      "blocks of 128 positions within them as well");
  if (fewest < static_cast<size_t>(kNeededPassages)) {
    notes->push_back(
        fmt::format("{} {} too few to speak for another text: {} are needed for a verdict",
                    counted(static_cast<int64_t>(fewest), "passage"), fewest == 1 ? "is" : "are",
                    kNeededPassages));
  }
}

/// Where a value stands but for its method: "keys / 512" by task and length, in rows or columns;
/// the whole row's name where nothing else is there.
std::string place_of(const Grid& grid, const Line& line, const Column& column) {
  std::vector<std::string> parts;
  for (size_t i = 0; i < line.keys.size(); ++i) {
    const std::string& name = grid.layout.rows[i];
    if (name != "label" && name != "method") parts.push_back(line.keys[i]);
  }
  parts.insert(parts.end(), column.keys.begin(), column.keys.end());
  return join(parts.empty() ? line.keys : parts, " / ");
}

/// What the brackets of a share are, and which places are hard without quantization too.
void add_shares(const Grid& grid, std::vector<std::string>* notes) {
  constexpr double kAnswered = 0.8;
  std::string metric;
  double fewest = std::numeric_limits<double>::infinity(), most = 0;
  std::vector<std::string> hard;
  for (const Line& line : grid.lines) {
    for (size_t i = 0; i < grid.columns.size(); ++i) {
      const Value& value = line.values[i];
      if (value.trials == 0) continue;
      metric = grid.columns[i].metric;
      fewest = std::min(fewest, value.trials);
      most = std::max(most, value.trials);
      if (!line.is_exact || value.mean >= kAnswered) continue;
      add_once(&hard, place_of(grid, line, grid.columns[i]));
    }
  }
  if (most == 0) return;
  const std::string trials =
      fewest == most ? fmt::format("{}", most) : fmt::format("{} to {}", fewest, most);
  notes->push_back(fmt::format(
      "{}: share of the {} trials that a value pools, with Wilson's 95% interval", metric, trials));
  if (!hard.empty()) {
    notes->push_back(fmt::format(
        "below 80% without quantization, which tells little of a cache: {}", join(hard, "; ")));
  }
}

/// Heading of a column for programs: "wo_rel", or "group=32" of a table with columns.
std::string exact_heading(const Layout& layout, const Column& column) {
  std::vector<std::string> parts;
  for (size_t i = 0; i < column.keys.size(); ++i) {
    parts.push_back(layout.cols[i] + "=" + column.keys[i]);
  }
  return parts.empty() ? column.metric : join(parts, " ");
}

}  // namespace

Sheet sheet_of(const Grid& grid, const Notes& notes) {
  const bool is_pivot = !grid.layout.cols.empty();
  const bool compares = !grid.layout.against.empty();
  Sheet sheet;
  sheet.notes = notes.lines;
  if (is_pivot) {
    sheet.title = fmt::format("{} by {} (rows) and {} (columns)", grid.layout.metrics.front(),
                              join(grid.layout.rows), join(grid.layout.cols));
  }
  for (const std::string& name : grid.layout.rows) sheet.columns.push_back({name, name, true});
  std::vector<bool> with_interval, with_count;
  for (size_t i = 0; i < grid.columns.size(); ++i) {
    const Column& column = grid.columns[i];
    const std::string exact = exact_heading(grid.layout, column);
    sheet.columns.push_back({is_pivot ? one_line(join(column.keys, " / ")) : column.metric, exact});
    with_interval.push_back(
        std::any_of(grid.lines.begin(), grid.lines.end(),
                    [&](const Line& line) { return has_interval(line.values[i]); }));
    if (with_interval.back()) {
      sheet.columns.push_back({"", exact + " low", false, For::programs});
      sheet.columns.push_back({"", exact + " high", false, For::programs});
    }
    // A program has no marks and notes that say what a mean leaves out.
    with_count.push_back(std::any_of(grid.lines.begin(), grid.lines.end(), [&](const Line& line) {
      return line.values[i].numbers > 0 && line.values[i].numbers < line.values[i].complete;
    }));
    if (with_count.back()) sheet.columns.push_back({"", exact + " cells", false, For::programs});
  }
  if (compares) {
    for (const Column& column : grid.columns) {
      for (const char* part : {" off", " off low", " off high"}) {
        sheet.columns.push_back(
            {"", exact_heading(grid.layout, column) + part, false, For::programs});
      }
    }
  }
  sheet.columns.push_back({"cells", "cells"});

  const Ranks ranks = rank_lines(grid);
  for (size_t i = 0; i < grid.lines.size(); ++i) {
    const Line& line = grid.lines[i];
    std::vector<Entry> entries;
    for (const std::string& key : line.keys) entries.push_back({one_line(key), key});
    entries.front().text += notes.marks[i];
    const bool is_marked = !is_pivot && is_partial(line);
    if (is_marked) entries.front().text += kPartialMark;
    for (size_t column = 0; column < grid.columns.size(); ++column) {
      const Value& value = line.values[column];
      Entry entry{text_of(value), exact_number(value.mean), ranks.by_column[column][i]};
      const std::string compared = compares ? off_text(off(grid, i, column)) : "";
      if (!compared.empty()) entry.text += " (" + compared + ")";
      if (!is_marked && value.is_partial) entry.text += kPartialMark;
      entries.push_back(std::move(entry));
      if (with_interval[column]) {
        entries.push_back({"", exact_number(value.low)});
        entries.push_back({"", exact_number(value.high)});
      }
      if (with_count[column]) entries.push_back({"", fmt::format("{}", value.cells)});
    }
    for (size_t column = 0; compares && column < grid.columns.size(); ++column) {
      const Off found = off(grid, i, column);
      for (const double part : {found.share, found.low, found.high}) {
        entries.push_back({"", exact_number(part)});
      }
    }
    const std::string cells = fmt::format("{}", line.cells);
    entries.push_back({cells, cells});
    sheet.lines.push_back(std::move(entries));
  }
  add_resampling(grid, &sheet.notes);
  add_shares(grid, &sheet.notes);
  if (compares) sheet.notes.push_back(note_of_comparison(grid));
  if (ranks.were_tested) {
    sheet.notes.emplace_back(
        "best and second include what cannot be told from them by the passages (paired, 95%)");
  }
  return sheet;
}

}  // namespace kvlab::report
