#include "report/published_sheet.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "base/error.h"
#include "base/names.h"
#include "base/nan.h"
#include "metrics_catalog/catalog.h"
#include "report/grid.h"
#include "report/layout.h"
#include "report/notes.h"
#include "report/number_text.h"
#include "report/text_width.h"
#include "store/summary.h"

namespace kvlab::report {
namespace {

using nlohmann::json;
using published::Metric;
using published::Row;
using published::Table;
using Words = std::vector<std::string>;

constexpr const char* kBitsHere = "bits_at_128k";

const published::Number* find(const std::vector<published::Number>& numbers,
                              const std::string& metric) {
  const auto found = std::find_if(numbers.begin(), numbers.end(),
                                  [&](const auto& number) { return number.metric == metric; });
  return found == numbers.end() ? nullptr : &*found;
}

/// Names of models or devices; where a paper gives none, that.
std::string stated(const Words& names, const char* what) {
  const bool is_stated = std::any_of(names.begin(), names.end(), [](const std::string& name) {
    return !name.empty() && name != "not stated";
  });
  return is_stated ? few(names) : fmt::format("a {} not stated", what);
}

bool is_time(const std::string& metric) {
  const metrics::MetricInfo* info = metrics::find_metric(metric);
  return info && info->unit == "us";
}

/// What stands in a column of measured values.
struct Measured {
  std::string metric;  // of the catalogue
  std::string over;    // label whose value is divided by the row's; empty: the value itself

  std::string heading() const {
    return over.empty() ? metric : fmt::format("{}, speed-up over {}", metric, over);
  }
  bool operator==(const Measured&) const = default;
};

std::vector<Measured> measured_beside(const Metric& metric) {
  std::vector<Measured> columns;
  for (const std::string& name : metric.beside) columns.push_back({name, metric.over});
  return columns;
}

bool has_time(const Metric& metric) {
  return std::any_of(metric.beside.begin(), metric.beside.end(), is_time);
}

/// Measured values by label and by the columns that published rows name.
class Here {
 public:
  Here(const store::Results& results, const Table& table) : results_(results) {
    const Words known = dimensions(results);
    Layout layout;
    layout.rows = {"label"};
    for (const Row& row : table.rows) {
      for (const auto& [key, value] : row.at) {
        if (std::find(known.begin(), known.end(), key) != known.end()) add_once(&layout.rows, key);
      }
    }
    const Words measured = measured_metrics(results);
    for (const Metric& metric : table.metrics) {
      for (const Measured& one : measured_beside(metric)) {
        if (std::find(columns_.begin(), columns_.end(), one) == columns_.end()) {
          columns_.push_back(one);
        }
        add_once(&layout.metrics, one.metric);
      }
    }
    const bool has_bits = std::any_of(table.rows.begin(), table.rows.end(),
                                      [](const Row& row) { return row.bits.has_value(); });
    shows_bits_ =
        has_bits && std::find(measured.begin(), measured.end(), kBitsHere) != measured.end() &&
        std::find(layout.metrics.begin(), layout.metrics.end(), kBitsHere) == layout.metrics.end();
    if (shows_bits_) layout.metrics.emplace_back(kBitsHere);
    if (layout.metrics.empty()) layout.metrics = {measured.empty() ? "wo_rel" : measured.front()};
    grid_ = make_grid(results, layout);
    mark_partial();
    notes_ = make_notes(results, grid_);
  }

  const Words& keys() const { return grid_.layout.rows; }
  const std::vector<Measured>& columns() const { return columns_; }
  bool shows_bits() const { return shows_bits_; }
  const Grid& grid() const { return grid_; }
  const Notes& notes() const { return notes_; }

  /// The line that a published row stands beside.
  std::optional<size_t> line_of(const Row& row) const {
    if (row.label.empty()) return std::nullopt;
    Words keys = {row.label};
    for (size_t i = 1; i < grid_.layout.rows.size(); ++i) {
      const std::string& column = grid_.layout.rows[i];
      const auto found = std::find_if(row.at.begin(), row.at.end(),
                                      [&](const auto& one) { return one.first == column; });
      if (found == row.at.end()) return std::nullopt;
      keys.push_back(store::axis_text(found->second));
    }
    return line_with(keys);
  }

  double value(size_t line, const Measured& column) const {
    const double own = value(line, column.metric);
    if (column.over.empty()) return own;
    Words keys = grid_.lines[line].keys;
    keys.front() = column.over;
    const auto other = line_with(keys);
    return other ? value(*other, column.metric) / own : kNaN;
  }

  double value(size_t line, const std::string& metric) const {
    const Value* value = find_value(line, metric);
    return value == nullptr ? kNaN : value->mean;
  }

  double half_interval(size_t line, const Measured& column) const {
    const Value* value = column.over.empty() ? find_value(line, column.metric) : nullptr;
    return value == nullptr ? kNaN : (value->high - value->low) / 2;
  }

  bool is_partial(size_t line, const std::string& metric) const {
    const Value* value = find_value(line, metric);
    return value != nullptr && value->is_partial;
  }

  /// Models of the captures, "synthetic keys" for the others.
  Words models() const {
    static const json::json_pointer model("/dataset/model");
    static const json::json_pointer source("/dataset/source");
    Words models;
    for (const store::SummaryRow& row : results_.rows) {
      const json config = config_of(results_, row);
      if (!config.is_object()) continue;
      if (config.value(source, "") == "synthetic") {
        add_once(&models, "synthetic data");
      } else {
        const std::string name = config.value(model, "");
        add_once(&models, name.empty() ? row.dataset : name);
      }
    }
    return models;
  }

  /// What times were taken on.
  std::string hardware() const {
    return results_.attribute(results_.attribute("backend") == "cuda" ? "gpu" : "cpu");
  }

 private:
  /// Rows of different data are over as many cells as these have: only what lacks a number is over
  /// fewer than it should be. What is not shown has no mark that a note could explain.
  void mark_partial() {
    for (Line& line : grid_.lines) {
      for (size_t i = 0; i < line.values.size(); ++i) {
        const std::string& metric = grid_.columns[i].metric;
        const bool is_shown =
            (shows_bits_ && metric == kBitsHere) ||
            std::any_of(columns_.begin(), columns_.end(),
                        [&](const Measured& column) { return column.metric == metric; });
        Value& value = line.values[i];
        value.is_partial = is_shown && value.is_partial && value.numbers < value.planned;
      }
    }
  }

  const Value* find_value(size_t line, const std::string& metric) const {
    for (size_t i = 0; i < grid_.columns.size(); ++i) {
      if (grid_.columns[i].metric == metric) return &grid_.lines[line].values[i];
    }
    return nullptr;
  }

  std::optional<size_t> line_with(const Words& keys) const {
    for (size_t i = 0; i < grid_.lines.size(); ++i) {
      if (grid_.lines[i].keys == keys) return i;
    }
    return std::nullopt;
  }

  const store::Results& results_;
  std::vector<Measured> columns_;
  bool shows_bits_ = false;
  Grid grid_;
  Notes notes_;
};

class SheetMaker {
 public:
  SheetMaker(const store::Results& results, const Table& table)
      : table_(table), here_(results, table), models_(here_.models()) {
    sheet_.title = fmt::format("{}, {}: {}", table.paper, table.table, table.title);
    Words certainties, models;
    for (const Row& row : table.rows) {
      add_once(&certainties, row.certainty);
      add_once(&models, row.model);
    }
    shows_certainty_ = certainties.size() > 1;
    shows_model_ = models.size() > 1;
    shows_stored_ = std::any_of(table.rows.begin(), table.rows.end(),
                                [](const Row& row) { return row.stored_bits.has_value(); });
    shows_bits_ = std::any_of(table.rows.begin(), table.rows.end(),
                              [](const Row& row) { return row.bits.has_value(); });
  }

  Sheet make() {
    add_columns();
    std::set<size_t> covered;
    for (const Row& row : table_.rows) {
      const auto line = here_.line_of(row);
      if (line) covered.insert(*line);
      add_line(&row, line);
    }
    for (size_t line = 0; line < here_.grid().lines.size(); ++line) {
      if (!covered.contains(line)) add_line(nullptr, line);
    }
    add_notes(covered);
    return std::move(sheet_);
  }

 private:
  void add_columns() {
    const auto add = [&](const std::string& heading, bool is_text) {
      sheet_.columns.push_back({heading, heading, is_text});
    };
    add("published as", true);
    if (shows_model_) add("model", true);
    for (const std::string& key : here_.keys()) add(key, true);
    for (const Metric& metric : table_.metrics) {
      add(fmt::format("published: {}{}", metric.name,
                      metric.unit.empty() ? "" : " [" + metric.unit + "]"),
          false);
    }
    for (const Measured& column : here_.columns()) {
      add("here: " + column.heading(), false);
    }
    if (shows_bits_) add("published: bits", false);
    if (shows_stored_) add("stored by their code: bits", false);
    if (here_.shows_bits()) add(fmt::format("here: {}", kBitsHere), false);
    if (shows_certainty_) add("certainty", true);
    add("differs", true);
  }

  static Entry number(double value, double half = kNaN) {
    Entry entry{short_number(value), exact_number(value)};
    if (!std::isnan(half)) entry.text += " ±" + two_digits(half);
    return entry;
  }

  static Entry printed(const published::Number* number, const published::Number* spread) {
    if (number == nullptr) return {"-", ""};
    const std::string behind = spread == nullptr ? "" : " ±" + spread->text;
    return {number->text + behind, exact_number(number->value)};
  }

  static Entry printed(const std::optional<double>& bits) {
    return bits ? Entry{exact_number(*bits), exact_number(*bits)} : Entry{"-", ""};
  }

  void add_line(const Row* row, std::optional<size_t> line) {
    std::vector<Entry> entries;
    const auto text = [&](const std::string& word) {
      entries.push_back({word.empty() ? "-" : one_line(word), word});
    };
    text(row ? row->method : "");
    if (shows_model_) text(row ? row->model : "");
    for (size_t i = 0; i < here_.keys().size(); ++i) text(key_of(row, line, i));
    if (line) entries[shows_model_ ? 2 : 1].text += here_.notes().marks[*line];
    for (const Metric& metric : table_.metrics) {
      entries.push_back(
          row ? printed(find(row->values, metric.name), find(row->spread, metric.name))
              : Entry{"-", ""});
    }
    for (const Measured& column : here_.columns()) {
      if (!line) {
        entries.push_back(number(kNaN));
        continue;
      }
      entries.push_back(number(here_.value(*line, column), here_.half_interval(*line, column)));
      if (here_.is_partial(*line, column.metric)) entries.back().text += kPartialMark;
    }
    if (shows_bits_) entries.push_back(printed(row ? row->bits : std::nullopt));
    if (shows_stored_) entries.push_back(printed(row ? row->stored_bits : std::nullopt));
    if (here_.shows_bits()) {
      entries.push_back(number(line ? here_.value(*line, kBitsHere) : kNaN));
      if (line && here_.is_partial(*line, kBitsHere)) entries.back().text += kPartialMark;
    }
    if (shows_certainty_) text(row ? row->certainty : "");
    text(row && line ? join(differing(*row)) : "");
    sheet_.lines.push_back(std::move(entries));
  }

  /// A published row names its own place, also where nothing stands beside it.
  std::string key_of(const Row* row, std::optional<size_t> line, size_t i) const {
    if (line) return here_.grid().lines[*line].keys[i];
    if (i == 0) return row->label;
    for (const auto& [key, value] : row->at) {
      if (key == here_.keys()[i]) return store::axis_text(value);
    }
    return "";
  }

  Words differing(const Row& row) const {
    Words words;
    if (models_ != Words{row.model}) words.emplace_back("model");
    const auto any = [&](const auto& holds) {
      return std::any_of(table_.metrics.begin(), table_.metrics.end(), [&](const Metric& metric) {
        return !metric.beside.empty() && holds(metric);
      });
    };
    if (any([](const Metric& metric) { return !metric.proxy.empty(); }))
      words.emplace_back("metric");
    if (any([](const Metric& metric) { return has_time(metric); }) && row.gpu != here_.hardware()) {
      words.emplace_back("hardware");
    }
    return words;
  }

  void add_notes(const std::set<size_t>& covered) {
    Words* notes = &sheet_.notes;
    Words models, gpus, certainties;
    for (const Row& row : table_.rows) {
      add_once(&models, row.model);
      add_once(&gpus, row.gpu);
      add_once(&certainties, row.certainty);
    }
    if (models != models_) {
      notes->push_back(
          fmt::format("model: published on {}; here {}", stated(models, "model"), few(models_)));
    }
    Words here;
    for (const Metric& metric : table_.metrics) {
      if (metric.beside.empty()) continue;
      Words headings;
      for (const Measured& column : measured_beside(metric)) headings.push_back(column.heading());
      notes->push_back(fmt::format("metric: {} beside {} ({})", metric.name, join(headings),
                                   metric.proxy.empty() ? "the same quantity" : metric.proxy));
      if (has_time(metric)) {
        add_once(&here, fmt::format("hardware: published on {}; here {}", stated(gpus, "device"),
                                    here_.hardware()));
      }
    }
    notes->insert(notes->end(), here.begin(), here.end());
    if (!shows_certainty_) notes->push_back("certainty: " + join(certainties));
    add_reasons(covered);
    for (const std::string& note : table_.notes) notes->push_back(one_line(note));
    for (const std::string& note : here_.notes().lines) notes->push_back(note);
  }

  /// Why there is a dash.
  void add_reasons(const std::set<size_t>& covered) {
    Words texts;
    std::map<std::string, Words> methods;
    const auto add = [&](const std::string& text, const std::string& method) {
      add_once(&texts, text);
      add_once(&methods[text], method);
    };
    for (const Row& row : table_.rows) {
      if (!row.missing.empty()) add("no published number: " + row.missing, row.method);
      if (!row.not_run.empty()) add("not run here: " + row.not_run, row.method);
      if (!row.label.empty() && !here_.line_of(row)) {
        add("not measured in this file: it has no such row", row.method);
      }
      if (!row.note.empty()) add(row.note, row.method);
    }
    for (size_t line = 0; line < here_.grid().lines.size(); ++line) {
      if (!covered.contains(line)) {
        add("no published number stands beside it", here_.grid().lines[line].keys.front());
      }
    }
    for (const std::string& text : texts) {
      sheet_.notes.push_back(fmt::format("{} ({})", one_line(text), few(methods[text])));
    }
  }

  const Table& table_;
  Here here_;
  Words models_;
  Sheet sheet_;
  bool shows_certainty_ = false, shows_model_ = false, shows_stored_ = false, shows_bits_ = false;
};

}  // namespace

std::optional<Table> published_of(const store::Results& results) {
  if (results.experiment_resolved.empty()) return std::nullopt;
  yaml::Problems problems;
  const yaml::Node root =
      yaml::parse(results.experiment_resolved, "/experiment/resolved", problems);
  const yaml::Node* node = root.find("published");
  if (node == nullptr) return std::nullopt;
  Table table = published::read(*node, problems);
  if (!problems.empty()) {
    throw Error(fmt::format("the published numbers in this file cannot be read: {}",
                            problems.front().message));
  }
  return table;
}

Sheet published_sheet(const store::Results& results, const Table& table) {
  return SheetMaker(results, table).make();
}

}  // namespace kvlab::report
