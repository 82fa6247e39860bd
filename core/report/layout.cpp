#include "report/layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <set>

#include "base/error.h"
#include "base/names.h"
#include "metrics_catalog/catalog.h"
#include "report/grid.h"
#include "store/needle.h"
#include "store/summary.h"

namespace kvlab::report {
namespace {

using Words = std::vector<std::string>;

bool contains(const Words& words, const std::string& word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

struct Named {
  std::string name;
  Words cols;     // none: one column a metric
  Words metrics;  // none: the headline metric
};

const std::vector<Named>& named_layouts() {
  static const std::vector<Named> all = {
      {"default",
       {},
       {"bits_per_element",
        "bits_at_32k",
        "bits_at_128k",
        "ppl",
        "dnll",
        "dnll_tail",
        "next_kl",
        "next_top1",
        "needle_exact",
        "needle_nll",
        "divergence",
        "wo_rel",
        "attn_kl",
        "out_rel",
        "k_nmse",
        "v_nmse",
        "encode_us",
        "append_us",
        "decode_us",
        "dequantize_us",
        "experiment_us",
        "step_us",
        "step_p99_us",
        "tokens_per_second"}},
      {"parts",
       {},
       {"wo_rel", "wo_rel_k", "wo_rel_v", "out_rel", "out_rel_k", "out_rel_v", "attn_kl",
        "attn_top1", "logit_mse"}},
      {"memory",
       {},
       {"bits_per_element", "bits_per_element_hist", "bits_at_8k", "bits_at_32k", "bits_at_128k",
        "bytes_codes", "bytes_params", "bytes_scales", "bytes_centers", "bytes_window",
        "bytes_padding", "rotation_bytes"}},
      {"norms",
       {},
       {"tni_ratio", "tni_ratio_heads", "tni_ratio_in", "tni_cv", "tni_block_ratio", "tni_bound",
        "tni_block_mse", "k_nmse"}},
      {"layers", {"layer"}, {}},
      {"datasets", {"dataset"}, {}},
      {"group", {"group"}, {}},
      {"window", {"window.recent"}, {}},
  };
  return all;
}

/// The words between commas, without spaces around them.
Words split(const std::string& text) {
  Words words;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    std::string word = text.substr(begin, end - begin);
    word.erase(0, word.find_first_not_of(' '));
    word.erase(word.find_last_not_of(' ') + 1);
    if (!word.empty()) words.push_back(word);
    begin = end + 1;
  }
  return words;
}

void refuse_repeats(const Words& words, const char* option) {
  std::set<std::string> seen;
  for (const std::string& word : words) {
    if (!seen.insert(word).second) {
      throw Error(fmt::format("{}: '{}' stands there twice", option, word));
    }
  }
}

const Named& find_layout(const std::string& name) {
  if (name.empty()) return named_layouts().front();
  for (const Named& layout : named_layouts()) {
    if (layout.name == name) return layout;
  }
  throw Error(fmt::format("--name: there is no table '{}'{}; choose from {}", name,
                          did_you_mean(name, layout_names()), join(layout_names())));
}

void check_dimensions(const store::Results& results, const Words& words, const char* option) {
  refuse_repeats(words, option);
  const Words known = dimensions(results);
  for (const std::string& word : words) {
    if (contains(known, word)) continue;
    throw Error(
        fmt::format("{}: this file has no column '{}' to sort its cells by{}; choose from {}",
                    option, word, did_you_mean(word, known), join(known)));
  }
}

void check_metrics(const Words& words, const Words& measured, const Words& all_nan) {
  refuse_repeats(words, "--value");
  Words known;
  for (const metrics::MetricInfo& metric : metrics::catalog()) known.push_back(metric.name);
  for (const std::string& name : measured) {
    if (!contains(known, name)) known.push_back(name);
  }
  for (const std::string& word : words) {
    if (!contains(known, word)) {
      throw Error(fmt::format("--value: there is no metric '{}'{}; kvlab list metrics has them all",
                              word, did_you_mean(word, known)));
    }
    if (contains(all_nan, word)) {
      throw Error(
          fmt::format("--value: '{}' is NaN in all rows: this data has no value for it", word));
    }
    if (!measured.empty() && !contains(measured, word)) {
      throw Error(fmt::format("--value: '{}' was not measured in this file; choose from {}", word,
                              join(measured)));
    }
  }
}

std::optional<std::string> headline(const Words& metrics) {
  for (const char* name : {"dnll", "wo_rel", "out_rel", "k_nmse"}) {
    if (contains(metrics, name)) return name;
  }
  return std::nullopt;
}

/// Whether a metric is of what the rows are of: whole models or samples.
bool fits_rows(const std::string& metric, const store::Results& results) {
  const metrics::MetricInfo* info = metrics::find_metric(metric);
  if (info == nullptr || info->measure == "memory") return true;
  const bool whole_models =
      !results.rows.empty() && std::all_of(results.rows.begin(), results.rows.end(),
                                           [](const auto& row) { return row.layer < 0; });
  return contains(metrics::model_measures(), info->measure) == whole_models;
}

/// Those of the words that were measured; where none was, all that the rows could have but timings.
Words available(const Words& words, const Words& measured, const store::Results& results) {
  Words found, possible;
  for (const std::string& word : words) {
    if (contains(measured, word)) found.push_back(word);
    if (!word.ends_with("_us") && fits_rows(word, results)) possible.push_back(word);
  }
  return !found.empty() ? found : !possible.empty() ? possible : words;
}

Words default_rows(const store::Results& results, const Words& cols) {
  Words rows;
  if (!contains(cols, "label")) rows.push_back("label");
  for (const std::string& axis : results.axes) {
    if (!contains(cols, axis)) rows.push_back(axis);
  }
  return rows.empty() ? Words{"dataset"} : rows;
}

/// Metrics that complete cells were asked for, but of which none has a number.
Words all_nan(const store::Results& results, const Words& measured) {
  std::set<nlohmann::json> asked;  // measures
  for (const store::SummaryRow& row : results.rows) {
    const store::CellResult* cell = store::cell_of(results, row);
    if (!cell || cell->status != "complete") continue;
    const nlohmann::json config = config_of(results, row);
    if (!config.is_object() || !config.contains("measure")) continue;
    for (const auto& measure : config["measure"]) asked.insert(measure);
  }
  Words names;
  for (const metrics::MetricInfo& metric : metrics::catalog()) {
    if (asked.contains(metric.measure) && !contains(measured, metric.name)) {
      names.push_back(metric.name);
    }
  }
  return names;
}

}  // namespace

std::vector<std::string> layout_names() {
  Words names;
  for (const Named& layout : named_layouts()) names.push_back(layout.name);
  names.emplace_back(kPublishedLayout);
  return names;
}

std::vector<std::string> measured_metrics(const store::Results& results) {
  std::set<std::string> found;
  for (const store::SummaryRow& row : results.rows) {
    const store::CellResult* cell = store::cell_of(results, row);
    if (!cell || cell->status != "complete") continue;
    for (const auto& [name, value] : cell->scalars) {
      if (!std::isnan(value)) found.insert(name);
    }
  }
  Words names;
  for (const metrics::MetricInfo& metric : metrics::catalog()) {
    if (found.erase(metric.name) > 0) names.push_back(metric.name);
  }
  names.insert(names.end(), found.begin(), found.end());
  return names;
}

std::vector<std::string> default_metrics(const std::vector<std::string>& measured) {
  constexpr std::ptrdiff_t kMost = 8;
  const Words& usual = named_layouts().front().metrics;
  if (measured.empty()) return usual;
  Words found;
  std::copy_if(usual.begin(), usual.end(), std::back_inserter(found),
               [&](const std::string& name) { return contains(measured, name); });
  if (!found.empty()) return found;
  return {measured.begin(), measured.begin() + std::min(kMost, std::ssize(measured))};
}

std::vector<std::string> dimensions(const store::Results& results) {
  Words names = {"method", "label", "dataset", "text", "layer", "seed", "backend"};
  if (store::has_needles(results)) {
    names.insert(names.end(), store::kNeedleColumns.begin(), store::kNeedleColumns.end());
  }
  names.insert(names.end(), results.axes.begin(), results.axes.end());
  return names;
}

Layout make_layout(const store::Results& results, const TableOptions& options) {
  const Named& named = find_layout(options.name);
  const Words measured = measured_metrics(results);
  const Words asked = split(options.value);
  check_metrics(asked, measured, all_nan(results, measured));

  Layout layout;
  const Words asked_rows = split(options.rows);
  const Words asked_cols = split(options.cols);
  layout.cols = asked_cols.empty() ? named.cols : asked_cols;
  check_dimensions(results, layout.cols, asked_cols.empty() ? "--name" : "--cols");
  layout.rows = asked_rows.empty() ? default_rows(results, layout.cols) : asked_rows;
  check_dimensions(results, layout.rows, "--rows");
  for (const std::string& row : layout.rows) {
    if (contains(layout.cols, row)) {
      throw Error(fmt::format("'{}' cannot be both in --rows and in --cols", row));
    }
  }

  if (!asked.empty()) {
    layout.metrics = asked;
  } else if (layout.cols.empty()) {
    const Named& usual = named_layouts().front();
    const bool is_usual = named.metrics.empty() || named.name == usual.name;
    layout.metrics = is_usual && !measured.empty()
                         ? default_metrics(measured)
                         : available(is_usual ? usual.metrics : named.metrics, measured, results);
  } else {
    const std::string first = measured.empty() ? "wo_rel" : measured.front();
    layout.metrics = {headline(measured).value_or(first)};
  }
  if (!layout.cols.empty() && layout.metrics.size() > 1) {
    throw Error(fmt::format("--value: a table with columns by {} shows one metric, found {}",
                            join(layout.cols), join(layout.metrics)));
  }
  layout.against = options.against;
  if (layout.cols.empty() && asked_rows.empty()) {
    layout.sort_by =
        asked.empty() ? headline(layout.metrics).value_or(layout.metrics.front()) : asked.front();
  }
  return layout;
}

}  // namespace kvlab::report
