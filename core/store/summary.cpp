#include "store/summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/error.h"
#include "base/h5_digest.h"
#include "base/names.h"
#include "base/nan.h"
#include "metrics_catalog/catalog.h"
#include "store/needle.h"

namespace kvlab::store {
namespace {

using nlohmann::json;

std::string column(const std::string& name) { return "/summary/" + name; }

template <class T, class Get>
void write_column(h5::File& file, const Results& results, const std::string& name, const Get& get) {
  std::vector<T> values;
  values.reserve(results.rows.size());
  for (const SummaryRow& row : results.rows) values.push_back(get(row));
  if constexpr (std::is_same_v<T, std::string>) {
    file.write_texts(column(name), values);
  } else {
    file.write(column(name), values);
  }
}

void write_axis(h5::File& file, const Results& results, size_t axis) {
  const std::string& name = results.axes[axis];
  const auto value = [axis](const SummaryRow& row) -> const json& {
    static const json none;
    return axis < row.sweep.size() ? row.sweep[axis] : none;
  };
  const auto all = [&](auto holds) {
    return std::all_of(results.rows.begin(), results.rows.end(),
                       [&](const SummaryRow& row) { return holds(value(row)); });
  };
  if (all([](const json& v) { return v.is_number_integer(); })) {
    write_column<int64_t>(file, results, name,
                          [&](const SummaryRow& row) { return value(row).get<int64_t>(); });
  } else if (all([](const json& v) { return v.is_number(); })) {
    write_column<double>(file, results, name,
                         [&](const SummaryRow& row) { return value(row).get<double>(); });
  } else {
    write_column<std::string>(file, results, name,
                              [&](const SummaryRow& row) { return axis_text(value(row)); });
  }
}

/// Empty and NaN where a row has none.
void write_needle_columns(h5::File& file, const Results& results) {
  const auto number = [](const SummaryRow& row, const char* name) {
    const json entry = needle_entry(row, name);
    return entry.is_null() ? kNaN : entry.get<double>();
  };
  write_column<std::string>(file, results, "task", [](const SummaryRow& row) {
    const json entry = needle_entry(row, "task");
    return entry.is_null() ? std::string() : entry.get<std::string>();
  });
  for (const char* name : {"length", "depth"}) {
    write_column<double>(file, results, name,
                         [&](const SummaryRow& row) { return number(row, name); });
  }
}

/// The metrics of the catalogue, then those that only cells know.
std::vector<std::string> metric_names(const Results& results) {
  std::vector<std::string> names;
  for (const metrics::MetricInfo& metric : metrics::catalog()) names.push_back(metric.name);
  for (const auto& [id, cell] : results.cells) {
    for (const auto& [name, value] : cell.scalars) {
      if (!metrics::find_metric(name) &&
          std::find(names.begin(), names.end(), name) == names.end()) {
        names.push_back(name);
      }
    }
  }
  return names;
}

/// The inverse of axis_text: numbers, truth values, lists and null come back as such.
json parse_axis_text(const std::string& text) {
  json value = json::parse(text, nullptr, false);
  return value.is_discarded() || value.is_string() ? json(text) : value;
}

std::vector<json> read_axis(const h5::File& file, const std::string& name) {
  std::vector<json> values;
  const h5::Info info = file.info(column(name));
  if (info.element.kind == h5::Element::Kind::text) {
    for (const std::string& text : file.read_texts(column(name))) {
      values.push_back(parse_axis_text(text));
    }
  } else if (info.element.kind == h5::Element::Kind::real) {
    for (const double value : file.read<double>(column(name))) values.emplace_back(value);
  } else {
    for (const int64_t value : file.read<int64_t>(column(name))) values.emplace_back(value);
  }
  return values;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

/// Reads columns and holds them to one length.
class Columns {
 public:
  explicit Columns(const h5::File& file) : file_(file) { size_ = texts("cell").size(); }
  size_t size() const { return size_; }

  std::vector<std::string> texts(const std::string& name) {
    return checked(name, file_.read_texts(column(name)));
  }
  std::vector<int64_t> integers(const std::string& name) {
    return checked(name, file_.read<int64_t>(column(name)));
  }
  std::vector<json> axis(const std::string& name) { return checked(name, read_axis(file_, name)); }

 private:
  template <class T>
  std::vector<T> checked(const std::string& name, std::vector<T> values) {
    if (name != "cell" && values.size() != size_) {
      throw Error(fmt::format("{}: {} has {} entries, /summary/cell has {}", file_.path().string(),
                              column(name), values.size(), size_));
    }
    return values;
  }

  const h5::File& file_;
  size_t size_ = 0;
};

}  // namespace

const CellResult* cell_of(const Results& results, const SummaryRow& row) {
  const auto found = results.cells.find(row.cell);
  return found == results.cells.end() ? nullptr : &found->second;
}

State state_of(const Results& results, const SummaryRow& row) {
  const CellResult* cell = cell_of(results, row);
  if (!cell) return {"interrupted", "not finished when the run stopped"};
  return {cell->status, cell->reason};
}

int64_t missing_rows(const Results& results) {
  int64_t rows = 0;
  const std::string text = results.attribute("experiment_rows");
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), rows);
  return parsed.ec == std::errc() ? std::max<int64_t>(0, rows - std::ssize(results.rows)) : 0;
}

std::string missing_rows_text(const Results& results) {
  const int64_t missing = missing_rows(results);
  if (missing == 0) return "";
  return fmt::format(
      "{} of the experiment's {} rows {} missing: a shard is not in, or --only chose some", missing,
      missing + std::ssize(results.rows), missing == 1 ? "is" : "are");
}

std::vector<std::string> warnings_of(const Results& results, const SummaryRow& row) {
  std::vector<std::string> all;
  const auto add = [&](const std::vector<std::string>& warnings) {
    for (const std::string& warning : warnings) add_once(&all, warning);
  };
  add(row.warnings);
  if (const CellResult* cell = cell_of(results, row)) add(cell->warnings);
  return all;
}

double scalar_of(const Results& results, const SummaryRow& row, const std::string& metric) {
  const CellResult* cell = cell_of(results, row);
  if (!cell || cell->status != "complete") return kNaN;
  const auto found = cell->scalars.find(metric);
  return found == cell->scalars.end() ? kNaN : found->second;
}

std::string axis_text(const json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

const std::vector<std::string>& fixed_columns() {
  static const std::vector<std::string> names = {"row",
                                                 "cell",
                                                 "status",
                                                 "reason",
                                                 "method",
                                                 "label",
                                                 "dataset",
                                                 "text",
                                                 "layer",
                                                 "seed",
                                                 "seed_used",
                                                 "backend",
                                                 "hist_tokens_key",
                                                 "hist_tokens_value",
                                                 "window_tokens_key",
                                                 "window_tokens_value",
                                                 "warnings"};
  return names;
}

void write_summary(h5::File& file, const Results& results) {
  for (const std::string& axis : results.axes) {
    const auto& fixed = fixed_columns();
    if (axis.find('/') != std::string::npos || metrics::find_metric(axis) ||
        std::find(fixed.begin(), fixed.end(), axis) != fixed.end()) {
      throw Error(
          fmt::format("a sweep axis cannot be called '{}': the summary has a column of this "
                      "name",
                      axis));
    }
  }
  file.make_group("/summary");
  file.set_attribute("/summary", "axes", results.axes);
  using Row = const SummaryRow&;
  write_column<int64_t>(file, results, "row", [](Row row) { return row.row; });
  write_column<std::string>(file, results, "cell", [](Row row) { return row.cell; });
  write_column<std::string>(file, results, "status",
                            [&](Row row) { return state_of(results, row).status; });
  write_column<std::string>(file, results, "reason",
                            [&](Row row) { return state_of(results, row).reason; });
  write_column<std::string>(file, results, "method", [](Row row) { return row.method; });
  write_column<std::string>(file, results, "label", [](Row row) { return row.label; });
  write_column<std::string>(file, results, "dataset", [](Row row) { return row.dataset; });
  write_column<std::string>(file, results, "text", [](Row row) { return row.text; });
  write_column<int64_t>(file, results, "layer", [](Row row) { return row.layer; });
  write_column<int64_t>(file, results, "seed", [](Row row) { return row.seed; });
  write_column<uint8_t>(file, results, "seed_used", [](Row row) { return row.seed_used; });
  write_column<std::string>(file, results, "backend", [](Row row) { return row.backend; });
  if (has_needles(results)) write_needle_columns(file, results);
  for (size_t axis = 0; axis < results.axes.size(); ++axis) write_axis(file, results, axis);

  const auto history = [&](Row row, bool key) -> int64_t {
    const CellResult* cell = cell_of(results, row);
    if (!cell) return 0;
    return key ? cell->hist_key[1] - cell->hist_key[0] : cell->hist_value[1] - cell->hist_value[0];
  };
  const auto total = [&](Row row) -> int64_t {
    const CellResult* cell = cell_of(results, row);
    return cell ? cell->tokens_total : 0;
  };
  for (const bool key : {true, false}) {
    const std::string side = key ? "key" : "value";
    write_column<int64_t>(file, results, "hist_tokens_" + side,
                          [&](Row row) { return history(row, key); });
    write_column<int64_t>(file, results, "window_tokens_" + side,
                          [&](Row row) { return total(row) - history(row, key); });
  }
  write_column<std::string>(file, results, "warnings",
                            [&](Row row) { return join(warnings_of(results, row), "\n"); });
  for (const std::string& name : metric_names(results)) {
    write_column<double>(file, results, name,
                         [&](Row row) { return scalar_of(results, row, name); });
    const metrics::MetricInfo* info = metrics::find_metric(name);
    file.set_attribute(column(name), "unit", info ? info->unit : "");
  }
  h5::seal(file, "/summary");
}

void read_summary(const h5::File& file, Results* results) {
  results->axes = file.attribute<std::vector<std::string>>("/summary", "axes");
  Columns columns(file);
  results->rows.assign(columns.size(), {});
  const auto fill = [&](const auto& values, const auto& set) {
    for (size_t i = 0; i < values.size(); ++i) set(results->rows[i], values[i]);
  };
  fill(columns.integers("row"), [](SummaryRow& row, int64_t v) { row.row = v; });
  fill(columns.texts("cell"), [](SummaryRow& row, const std::string& v) { row.cell = v; });
  fill(columns.texts("method"), [](SummaryRow& row, const std::string& v) { row.method = v; });
  fill(columns.texts("label"), [](SummaryRow& row, const std::string& v) { row.label = v; });
  fill(columns.texts("dataset"), [](SummaryRow& row, const std::string& v) { row.dataset = v; });
  if (file.exists(column("text"))) {  // files of earlier versions lack it
    fill(columns.texts("text"), [](SummaryRow& row, const std::string& v) { row.text = v; });
  }
  fill(columns.texts("backend"), [](SummaryRow& row, const std::string& v) { row.backend = v; });
  fill(columns.integers("layer"), [](SummaryRow& row, int64_t v) { row.layer = v; });
  fill(columns.integers("seed"), [](SummaryRow& row, int64_t v) { row.seed = v; });
  fill(columns.integers("seed_used"), [](SummaryRow& row, int64_t v) { row.seed_used = v != 0; });
  for (const std::string& axis : results->axes) {
    fill(columns.axis(axis), [](SummaryRow& row, const json& v) { row.sweep.push_back(v); });
  }
  fill(columns.texts("warnings"), [&](SummaryRow& row, const std::string& v) {
    const CellResult* cell = cell_of(*results, row);
    for (const std::string& line : lines_of(v)) {
      if (!cell ||
          std::find(cell->warnings.begin(), cell->warnings.end(), line) == cell->warnings.end()) {
        row.warnings.push_back(line);
      }
    }
  });
}

}  // namespace kvlab::store
