#include "report/notes.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <string_view>

#include "base/names.h"
#include "report/differs.h"
#include "report/text_width.h"
#include "store/summary.h"

namespace kvlab::report {
namespace {

using nlohmann::json;
using Words = std::vector<std::string>;

constexpr ptrdiff_t kMostWarnings = 30;

/// The most entries of `name` that one value of the table is a mean over: an axis that goes along
/// with one of rows or columns has one in each.
size_t most_entries(const store::Results& results, const Layout& layout, const std::string& name) {
  std::map<std::vector<json>, std::set<json>> of_value;
  size_t most = 0;
  for (const store::SummaryRow& row : results.rows) {
    std::vector<json> place;
    for (const Words* words : {&layout.rows, &layout.cols}) {
      for (const std::string& key : *words) place.push_back(entry_of(results, row, key));
    }
    std::set<json>& entries = of_value[place];
    entries.insert(entry_of(results, row, name));
    most = std::max(most, entries.size());
  }
  return most;
}

/// "mean over 12 layers, 2 datasets": what is in neither rows nor columns and differs.
std::string averaging(const store::Results& results, const Layout& layout) {
  Words over;
  for (const std::string& name : dimensions(results)) {
    const auto among = [&](const Words& words) {
      return std::find(words.begin(), words.end(), name) != words.end();
    };
    // Rows by label are rows by method; of the two only the label is worth a word.
    // Datasets are counted already.
    if (name == "method" || name == "text" || among(layout.rows) || among(layout.cols)) continue;
    const size_t entries = most_entries(results, layout, name);
    const bool is_axis =
        std::find(results.axes.begin(), results.axes.end(), name) != results.axes.end();
    if (entries > 1) {
      over.push_back(is_axis ? fmt::format("{} values of {}", entries, name)
                             : counted(static_cast<int64_t>(entries), name));
    }
  }
  return over.empty() ? "" : "mean over " + join(over);
}

/// What cells say of the shape of their data, each key with all its values: a sweep may change
/// them.
class Shape {
 public:
  void add(const json& dataset) {
    for (size_t i = 0; i < kKeys.size(); ++i) {
      const auto found = dataset.find(kKeys[i].first);
      if (found != dataset.end() && !found->is_null()) {
        add_once(&values_[i], store::axis_text(*found));
      }
    }
  }

  std::string text() const {
    Words parts;
    for (size_t i = 0; i < kKeys.size(); ++i) {
      if (values_[i].empty()) continue;
      std::string part = fmt::format(fmt::runtime(kKeys[i].second), join(values_[i], "/"));
      if (values_[i] == Words{"1"} && part.ends_with('s')) part.pop_back();  // "1 KV head"
      parts.push_back(std::move(part));
    }
    return join(parts);
  }

 private:
  static constexpr std::array<std::pair<const char*, const char*>, 6> kKeys = {
      {{"head_dim", "head_dim {}"},
       {"layers", "{} layers"},
       {"kv_heads", "{} KV heads"},
       {"q_heads", "{} query heads"},
       {"tokens", "{} tokens"},
       {"dtype", "{}"}}};
  std::array<Words, kKeys.size()> values_;
};

/// A line for each shape of data: its datasets and how many layers of them there are.
void add_datasets(const store::Results& results, Words* lines) {
  std::map<std::string, std::set<int64_t>> layers;
  std::map<std::string, Shape> shapes;
  std::set<std::pair<std::string, std::string>> seen;  // cells, by each name of their data
  Words names;
  for (const store::SummaryRow& row : results.rows) {
    add_once(&names, row.dataset);
    layers[row.dataset].insert(row.layer);
    if (!seen.emplace(row.cell, row.dataset).second) continue;
    const json config = config_of(results, row);
    if (config.is_object() && config.contains("dataset") && config["dataset"].is_object()) {
      shapes[row.dataset].add(config["dataset"]);
    }
  }
  Words texts;
  std::map<std::string, Words> holders;
  for (const std::string& name : names) {
    std::string text = shapes[name].text();
    // A whole model's rows stand on layer −1, and its shape names its layers.
    if (layers[name] != std::set<int64_t>{-1} || text.empty()) {
      if (!text.empty()) text += ", ";
      text += counted(std::ssize(layers[name]), "layer");
    }
    add_once(&texts, text);
    holders[text].push_back(name);
  }
  for (const std::string& text : texts) {
    lines->push_back(fmt::format("data: {} ({})", join(holders[text]), text));
  }
}

/// "3 of 4 complete", "3 of 4 complete, 2 with a number".
std::string share_text(const Value& value) {
  std::string text = fmt::format("{} of {} complete", value.complete, value.planned);
  if (value.numbers < value.complete) text += fmt::format(", {} with a number", value.numbers);
  return text;
}

/// Values that are means over less than their neighbours.
void add_partial(const Grid& grid, Words* lines) {
  Words partial;
  for (const Line& line : grid.lines) {
    for (size_t i = 0; i < grid.columns.size(); ++i) {
      const Value& value = line.values[i];
      if (!value.is_partial) continue;
      std::string place = name_of(line);
      if (!grid.layout.cols.empty()) {
        place += ", " + join(grid.columns[i].keys, " / ");
      } else if (!is_partial(line)) {
        place += ", " + grid.columns[i].metric;
      }
      add_once(&partial, fmt::format("{} ({})", place, share_text(value)));
    }
  }
  if (!partial.empty()) {
    lines->push_back("† over fewer cells than other rows, not comparable: " + join(partial));
  }
}

/// Metrics that have no number in some complete cells of every row alike.
void add_missing_numbers(const Grid& grid, Words* lines) {
  for (const std::string& metric : grid.layout.metrics) {
    int64_t numbers = 0, complete = 0;
    for (const Line& line : grid.lines) {
      for (size_t i = 0; i < grid.columns.size(); ++i) {
        const Value& value = line.values[i];
        if (grid.columns[i].metric != metric || value.numbers == 0 || value.is_partial) continue;
        numbers += value.numbers;
        complete += value.complete;
      }
    }
    if (numbers == complete) continue;
    lines->push_back(fmt::format("{}: mean over {} of {} cells; the others have no value", metric,
                                 numbers, complete));
  }
}

/// The warnings of a line's rows, each once. A line that averages many cells would name each cell's
/// twins, so more than two such warnings become one.
Words warnings_of(const store::Results& results, const Line& line) {
  constexpr std::string_view kTwins = "same configuration as ";
  Words texts;
  for (const store::SummaryRow* row : line.rows) {
    for (const std::string& warning : store::warnings_of(results, *row)) {
      add_once(&texts, one_line(warning));
    }
  }
  const auto names_twins = [&](const std::string& text) { return text.starts_with(kTwins); };
  if (std::count_if(texts.begin(), texts.end(), names_twins) > 2) {
    std::erase_if(texts, names_twins);
    texts.push_back("cells of the same configuration as others, computed once");
  }
  return texts;
}

/// Warnings, each once, with the lines that they hold for.
void add_warnings(const store::Results& results, const Grid& grid, Notes* notes) {
  Words texts;
  std::map<std::string, std::set<size_t>> holders;
  for (size_t i = 0; i < grid.lines.size(); ++i) {
    for (const std::string& text : warnings_of(results, grid.lines[i])) {
      add_once(&texts, text);
      holders[text].insert(i);
    }
  }
  std::vector<Words> marks(grid.lines.size());
  size_t number = 0;
  for (const std::string& text : texts) {
    if (number == kMostWarnings) {
      notes->lines.push_back(
          fmt::format("and {}, in /summary/warnings of the file",
                      counted(std::ssize(texts) - kMostWarnings, "more warning")));
      break;
    }
    ++number;
    notes->lines.push_back(fmt::format("[{}] {}", number, text));
    for (const size_t line : holders[text]) marks[line].push_back(std::to_string(number));
  }
  for (size_t i = 0; i < marks.size(); ++i) {
    if (!marks[i].empty()) notes->marks[i] = fmt::format(" [{}]", join(marks[i], ","));
  }
}

}  // namespace

bool is_partial(const Line& line) {
  bool has_numbers = false;
  for (const Value& value : line.values) {
    if (value.numbers == 0) continue;
    if (!value.is_partial) return false;
    has_numbers = true;
  }
  return has_numbers;
}

std::vector<std::string> incomplete_cells(const store::Results& results) {
  struct Group {
    std::set<std::string> cells;
    Words labels;
  };
  std::vector<std::pair<std::string, std::string>> order;
  std::map<std::pair<std::string, std::string>, Group> groups;
  for (const store::SummaryRow& row : results.rows) {
    store::State state = store::state_of(results, row);
    if (is_stale(results, row)) state = {"stale", "computed by another version of kvlab"};
    if (state.status == "complete") continue;
    const std::pair<std::string, std::string> key{state.status, one_line(state.reason)};
    Group& group = groups[key];
    if (group.cells.empty()) order.push_back(key);
    group.cells.insert(row.cell);
    add_once(&group.labels, row.label);
  }
  Words lines;
  for (const auto& key : order) {
    const Group& group = groups[key];
    lines.push_back(fmt::format("{} {}: {} ({})", counted(std::ssize(group.cells), "cell"),
                                key.first, key.second.empty() ? "no reason stored" : key.second,
                                few(group.labels)));
  }
  return lines;
}

Notes make_notes(const store::Results& results, const Grid& grid) {
  Notes notes;
  notes.marks.resize(grid.lines.size());
  const std::string over = averaging(results, grid.layout);
  if (!over.empty()) notes.lines.push_back(over);
  Words backends;
  for (const store::SummaryRow& row : results.rows) add_once(&backends, row.backend);
  notes.lines.push_back("backend: " + join(backends));
  add_datasets(results, &notes.lines);
  for (const std::string& line : differing_settings(results, grid.layout)) {
    notes.lines.push_back("differs between methods: " + line);
  }
  const std::string missing = store::missing_rows_text(results);
  if (!missing.empty()) notes.lines.push_back(missing);
  add_partial(grid, &notes.lines);
  add_missing_numbers(grid, &notes.lines);
  add_warnings(results, grid, &notes);
  return notes;
}

}  // namespace kvlab::report
