#include "published/published.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/names.h"
#include "metrics_catalog/catalog.h"

namespace kvlab::published {
namespace {

using yaml::Fields;
using yaml::Node;
using yaml::Problems;

constexpr int64_t kSchema = 1;

/// What a row has where it does not say: the file's own keys.
struct Defaults {
  std::string model, gpu, certainty;
  std::optional<double> bits, stored_bits;
};

std::string text_of(Fields& fields, const char* key, Problems& problems) {
  const Node* node = fields.get(key);
  return node == nullptr ? "" : yaml::read_text(*node, key, problems).value_or("");
}

std::string needed_text(Fields& fields, const Node& owner, const char* key, Problems& problems) {
  std::string text = text_of(fields, key, problems);
  if (text.empty()) yaml::report(problems, owner, fmt::format("'{}' is missing", key));
  return text;
}

/// A number that can be printed: finite.
std::optional<double> read_finite(const Node& node, const std::string& what, Problems& problems) {
  const auto number = yaml::read_real(node, what, problems);
  if (!number || std::isfinite(*number)) return number;
  yaml::report(problems, node, fmt::format("'{}' must be finite, found {}", what, node.text));
  return std::nullopt;
}

std::optional<double> bits_of(Fields& fields, const char* key, Problems& problems) {
  const Node* node = fields.get(key);
  if (node == nullptr) return std::nullopt;
  const auto bits = read_finite(*node, key, problems);
  if (!bits || *bits > 0) return bits;
  yaml::report(problems, *node, fmt::format("'{}' must be above 0, found {}", key, node->text));
  return std::nullopt;
}

std::vector<std::string> texts_of(const Node* node, const char* key, Problems& problems) {
  std::vector<std::string> texts;
  if (node == nullptr) return texts;
  if (!node->is_list()) {
    yaml::report(problems, *node, fmt::format("'{}' must be a list of texts", key));
  }
  for (const Node& item : node->items) {
    texts.push_back(yaml::read_text(item, key, problems).value_or(""));
  }
  return texts;
}

std::string certainty_of(Fields& fields, Problems& problems) {
  const Node* node = fields.get("certainty");
  if (node == nullptr) return "";
  const std::string word = yaml::read_text(*node, "certainty", problems).value_or("");
  const auto& valid = certainties();
  if (std::find(valid.begin(), valid.end(), word) == valid.end()) {
    yaml::report(problems, *node,
                 fmt::format("'certainty' must be one of {}, found '{}'{}", join(valid), word,
                             did_you_mean(word, valid)));
  }
  return word;
}

/// The name of a metric that kvlab has.
std::string read_catalogued(const Node& node, Problems& problems) {
  std::string name = yaml::read_text(node, "beside", problems).value_or("");
  if (metrics::find_metric(name) != nullptr) return name;
  std::vector<std::string> names;
  for (const metrics::MetricInfo& info : metrics::catalog()) names.push_back(info.name);
  yaml::report(problems, node,
               fmt::format("there is no metric '{}'{}", name, did_you_mean(name, names)));
  return name;
}

Metric read_metric(const yaml::Member& member, Problems& problems) {
  Metric metric;
  metric.name = member.key;
  Fields fields(member.value, fmt::format("the metric '{}'", member.key), problems);
  metric.unit = text_of(fields, "unit", problems);
  metric.proxy = text_of(fields, "proxy", problems);
  metric.over = text_of(fields, "over", problems);
  if (const Node* beside = fields.get("beside")) {
    for (const Node& name : beside->is_list() ? beside->items : std::vector{*beside}) {
      metric.beside.push_back(read_catalogued(name, problems));
    }
  }
  fields.finish();
  return metric;
}

class TableReader {
 public:
  TableReader(const Node& root, Problems& problems) : root_(root), problems_(problems) {}

  Table read() {
    Fields fields(root_, "the published table", problems_);
    if (!root_.is_map()) return table_;
    const Node* schema = fields.get("schema");
    if (schema != nullptr && yaml::read_int(*schema, "schema", problems_) != kSchema) {
      yaml::report(problems_, *schema, fmt::format("schema must be {}", kSchema));
    }
    table_.paper = needed_text(fields, root_, "paper", problems_);
    table_.table = needed_text(fields, root_, "table", problems_);
    table_.title = needed_text(fields, root_, "title", problems_);
    defaults_.model = text_of(fields, "model", problems_);
    defaults_.gpu = text_of(fields, "gpu", problems_);
    defaults_.certainty = certainty_of(fields, problems_);
    defaults_.bits = bits_of(fields, "bits", problems_);
    defaults_.stored_bits = bits_of(fields, "stored_bits", problems_);
    if (const Node* metrics = fields.get("metrics")) {
      for (const yaml::Member& member : metrics->members) {
        table_.metrics.push_back(read_metric(member, problems_));
      }
    }
    if (table_.metrics.empty()) yaml::report(problems_, root_, "'metrics' has no metric");
    read_means(fields.get("means"));
    const Node* rows = fields.get("rows");
    if (rows == nullptr || !rows->is_list() || rows->items.empty()) {
      yaml::report(problems_, root_, "'rows' must be a list of published rows");
    } else {
      for (const Node& row : rows->items) table_.rows.push_back(read_row(row));
    }
    table_.notes = texts_of(fields.get("notes"), "notes", problems_);
    fields.finish();
    return std::move(table_);
  }

 private:
  /// Means that the paper prints beside what they are over; a test checks them.
  void read_means(const Node* node) {
    if (node == nullptr) return;
    if (!node->is_map()) yaml::report(problems_, *node, "'means' must be a map of lists");
    for (const yaml::Member& member : node->members) {
      check_metric(member.key, member.value);
      for (const std::string& name : texts_of(&member.value, "means", problems_)) {
        check_metric(name, member.value);
      }
    }
  }

  void check_metric(const std::string& name, const Node& at) {
    std::vector<std::string> names;
    for (const Metric& metric : table_.metrics) names.push_back(metric.name);
    if (std::find(names.begin(), names.end(), name) != names.end()) return;
    yaml::report(
        problems_, at,
        fmt::format("'{}' is none of this table's metrics{}", name, yaml::hint(name, names)));
  }

  std::vector<Number> numbers_of(const Node* node, const char* key) {
    std::vector<Number> numbers;
    if (node == nullptr) return numbers;
    if (!node->is_map()) {
      yaml::report(problems_, *node, fmt::format("'{}' must be a map of numbers by metric", key));
    }
    for (const yaml::Member& member : node->members) {
      check_metric(member.key, member.value);
      const auto number = read_finite(member.value, member.key, problems_);
      if (number) numbers.push_back({member.key, *number, member.value.text});
    }
    return numbers;
  }

  Row read_row(const Node& node) {
    Row row;
    Fields fields(node, "a published row", problems_);
    if (!node.is_map()) return row;
    const auto text = [&](const char* key, const std::string& fallback) {
      std::string own = text_of(fields, key, problems_);
      return own.empty() ? fallback : own;
    };
    row.method = needed_text(fields, node, "method", problems_);
    row.label = text("label", "");
    row.not_run = text("not_run", "");
    row.model = text("model", defaults_.model);
    row.gpu = text("gpu", defaults_.gpu);
    row.note = text("note", "");
    row.missing = text("missing", "");
    row.certainty = certainty_of(fields, problems_);
    if (row.certainty.empty()) row.certainty = defaults_.certainty;
    const auto bits = bits_of(fields, "bits", problems_);
    row.bits = bits ? bits : defaults_.bits;
    const auto stored = bits_of(fields, "stored_bits", problems_);
    row.stored_bits = stored ? stored : defaults_.stored_bits;
    const Node* values = fields.get("values");
    row.values = numbers_of(values, "values");
    row.spread = numbers_of(fields.get("spread"), "spread");
    for (const Number& spread : row.spread) {
      if (spread.value >= 0) continue;
      yaml::report(problems_, node,
                   fmt::format("a 'spread' must be at least 0, found {}", spread.text));
    }
    if (const Node* at = fields.get("at")) {
      if (!at->is_map()) yaml::report(problems_, *at, "'at' must be a map of columns to values");
      for (const yaml::Member& member : at->members) {
        row.at.emplace_back(member.key, yaml::to_json(member.value));
      }
    }
    fields.finish();
    check_row(row, values != nullptr && !values->members.empty(), node);
    return row;
  }

  /// `has_values`: also where none of them can be read, which is a mistake of its own.
  void check_row(const Row& row, bool has_values, const Node& node) {
    if (row.certainty.empty()) yaml::report(problems_, node, "'certainty' is missing");
    if (row.model.empty()) yaml::report(problems_, node, "'model' is missing");
    if (has_values == !row.missing.empty()) {
      yaml::report(problems_, node,
                   "a published row has either 'values' or, as a sentence, 'missing'");
    }
    const bool is_for_experiment =
        std::any_of(table_.metrics.begin(), table_.metrics.end(),
                    [](const Metric& metric) { return !metric.beside.empty(); });
    if (is_for_experiment && row.label.empty() == row.not_run.empty()) {
      yaml::report(problems_, node,
                   "a published row that stands beside an experiment has either the 'label' of its "
                   "rows or, as a sentence, 'not_run'");
    }
  }

  const Node& root_;
  Problems& problems_;
  Table table_;
  Defaults defaults_;
};

}  // namespace

const std::vector<std::string>& certainties() {
  static const std::vector<std::string> words = {"read from", "second-hand", "conflicting"};
  return words;
}

Table read(const Node& root, Problems& problems) { return TableReader(root, problems).read(); }

}  // namespace kvlab::published
