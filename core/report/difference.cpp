#include "report/difference.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <tuple>

#include "base/error.h"
#include "base/names.h"
#include "base/nan.h"
#include "metrics_catalog/catalog.h"
#include "report/grid.h"
#include "store/summary.h"

namespace kvlab::report {
namespace {

using nlohmann::json;
using Words = std::vector<std::string>;

struct Paired {
  const store::SummaryRow* row_a = nullptr;
  const store::CellResult* a = nullptr;
  const store::CellResult* b = nullptr;
};

/// What two rows of different files must share.
std::string key_of(const store::Results& results, const store::SummaryRow& row) {
  std::map<std::string, json> sweep;  // by name: the order of axes may differ
  for (size_t i = 0; i < std::min(results.axes.size(), row.sweep.size()); ++i) {
    sweep[results.axes[i]] = row.sweep[i];
  }
  const json seed = row.seed_used ? json(row.seed) : json();
  return json{row.label, row.dataset, row.layer, row.backend, seed, sweep}.dump();
}

std::map<std::string, const store::SummaryRow*> rows_by_key(const store::Results& results) {
  std::map<std::string, const store::SummaryRow*> rows;
  for (const store::SummaryRow& row : results.rows) rows.emplace(key_of(results, row), &row);
  return rows;
}

std::string point_of(const store::Results& results, const store::SummaryRow& row) {
  Words words;
  for (size_t i = 0; i < std::min(results.axes.size(), row.sweep.size()); ++i) {
    words.push_back(results.axes[i] + " " + store::axis_text(row.sweep[i]));
  }
  return join(words);
}

/// What of an input decides its numbers: the content and, of it, the tokens and queries.
json content_of(const json& config, const char* input) {
  if (!config.is_object() || !config.contains(input)) return nullptr;
  const json& part = config[input];
  if (input == std::string("probes") || !part.is_object()) return part;
  json content;
  for (const char* key : {"sha256", "tokens", "stretch", "prefill", "device", "forward_dtype"}) {
    if (part.contains(key)) content[key] = part[key];
  }
  return content;
}

/// B − A of a pair. inf − inf would be NaN.
Sampled difference_of(const Paired& pair, const std::string& metric) {
  const Sampled a = sampled(*pair.a, metric);
  const Sampled b = sampled(*pair.b, metric);
  return Sampled::of(
      [](const std::vector<double>& both) { return both[0] == both[1] ? 0.0 : both[1] - both[0]; },
      {&a, &b});
}

class Comparison {
 public:
  Comparison(const store::Results& a, const store::Results& b, const Allowed& allowed)
      : a_(a), b_(b), passages_(a), allowed_(allowed) {}

  Difference run(const std::vector<Limit>& limits) {
    pair_rows();
    check_inputs();
    check_gpus();
    measure();
    for (const Limit& limit : limits) apply(limit);
    if (!limits.empty() && lost_ > 0) {
      result_.failures.push_back(
          fmt::format("{} {} of A {} no complete partner in B, so no limit is known to hold there",
                      lost_, lost_ == 1 ? "row" : "rows", lost_ == 1 ? "has" : "have"));
    }
    return std::move(result_);
  }

 private:
  void pair_rows() {
    const auto others = rows_by_key(b_);
    std::vector<const store::SummaryRow*> rows;
    for (const store::SummaryRow& row : a_.rows) rows.push_back(&row);
    std::stable_sort(rows.begin(), rows.end(),
                     [](const auto* x, const auto* y) { return x->row < y->row; });
    int64_t only_a = 0, incomplete = 0;
    std::set<std::string> met;
    std::set<std::tuple<std::string, std::string, std::string, std::string>> compared;
    for (const store::SummaryRow* row : rows) {
      const std::string key = key_of(a_, *row);
      if (!met.insert(key).second) continue;
      const auto other = others.find(key);
      const store::CellResult* first = complete_cell(a_, *row);
      if (other == others.end()) {
        ++only_a;
        if (first) ++lost_;
        continue;
      }
      const store::CellResult* second = complete_cell(b_, *other->second);
      if (!first && !second) continue;
      if (!first || !second) {
        ++incomplete;
        if (first) ++lost_;
        continue;
      }
      // The same data under another name says nothing more.
      if (!compared.emplace(first->id, second->id, row->label, point_of(a_, *row)).second) continue;
      pairs_.push_back({row, first, second});
    }
    int64_t only_b = 0;
    for (const auto& [key, row] : others) only_b += met.contains(key) ? 0 : 1;
    note(only_a, "only in A");
    note(only_b, "only in B");
    note(incomplete, "complete in one file alone");
    if (pairs_.empty()) {
      throw Error(
          "no cell of A has a complete partner in B: rows pair by label, dataset, layer, seed, "
          "backend and sweep point");
    }
  }

  void note(int64_t rows, const std::string& what) {
    if (rows > 0) {
      result_.notes.push_back(
          fmt::format("not compared: {} {} {}", rows, rows == 1 ? "row" : "rows", what));
    }
  }

  void check_inputs() {
    for (const Paired& pair : pairs_) {
      const json first = json::parse(pair.a->config, nullptr, false);
      const json second = json::parse(pair.b->config, nullptr, false);
      for (const char* input : {"dataset", "probes", "calibration"}) {
        if (content_of(first, input) == content_of(second, input)) continue;
        const std::string sentence =
            fmt::format("the {} of {} {} not the same in both files", input, place_of(pair),
                        input == std::string("probes") ? "are" : "is");
        if (!allowed_.inputs) {
          throw Error(sentence + "; --allow inputs compares all the same");
        }
        result_.notes.push_back("inputs differ: " + sentence);
        return;
      }
    }
  }

  /// Whatever was not made on the CPU depends on the device.
  void check_gpus() {
    const auto depends = [](const Paired& pair) {
      const json config = json::parse(pair.a->config, nullptr, false);
      const json dataset = config.is_object() ? config.value("dataset", json()) : json();
      const bool model_on_gpu = dataset.is_object() && dataset.value("device", "cpu") == "cuda";
      return model_on_gpu || (pair.row_a->backend != "reference" && pair.row_a->backend != "cpu");
    };
    if (std::none_of(pairs_.begin(), pairs_.end(), depends)) return;
    const std::string first = a_.attribute("gpu");
    const std::string second = b_.attribute("gpu");
    if (first == second) return;
    const std::string sentence =
        fmt::format("A was made on '{}', B on '{}'", first.empty() ? "no GPU" : first,
                    second.empty() ? "no GPU" : second);
    if (!allowed_.gpu) throw Error(sentence + "; --allow gpu compares all the same");
    result_.notes.push_back("GPUs differ: " + sentence);
  }

  static std::string place_of(const Paired& pair) {
    return pair.row_a->layer < 0
               ? pair.row_a->dataset
               : fmt::format("{}, layer {}", pair.row_a->dataset, pair.row_a->layer);
  }

  /// Metrics of the pairs: those of the catalogue in its order, then others.
  Words metric_names() const {
    std::set<std::string> found;
    for (const Paired& pair : pairs_) {
      for (const auto& [name, value] : pair.a->scalars) {
        if (pair.b->scalars.contains(name)) found.insert(name);
      }
    }
    Words names;
    for (const metrics::MetricInfo& metric : metrics::catalog()) {
      if (found.erase(metric.name) > 0) names.push_back(metric.name);
    }
    names.insert(names.end(), found.begin(), found.end());
    return names;
  }

  void measure() {
    std::vector<std::pair<std::string, std::string>> lines;
    std::map<std::pair<std::string, std::string>, std::vector<const Paired*>> members;
    for (const Paired& pair : pairs_) {
      const std::pair key{pair.row_a->label, point_of(a_, *pair.row_a)};
      if (!members.contains(key)) lines.push_back(key);
      members[key].push_back(&pair);
    }
    for (const auto& line : lines) {
      for (const std::string& metric : metric_names()) {
        if (auto change = change_of(members[line], metric)) {
          if (change->lost > 0) {
            result_.notes.push_back(fmt::format(
                "{}: {} is no number in {} {} of B, as in {}", line.first, metric, change->lost,
                change->lost == 1 ? "cell" : "cells", change->worst_cell));
          }
          change->label = line.first;
          change->point = line.second;
          result_.changes.push_back(std::move(*change));
        }
      }
    }
  }

  std::optional<Change> change_of(const std::vector<const Paired*>& pairs,
                                  const std::string& metric) const {
    const double sign = metrics::larger_is_better(metric) ? -1 : 1;
    Change change;
    change.metric = metric;
    change.worst = change.worst_share = -std::numeric_limits<double>::infinity();
    std::map<std::string, std::vector<Sampled>> passages;
    for (const Paired* pair : pairs) {
      const auto first = pair->a->scalars.find(metric);
      const auto second = pair->b->scalars.find(metric);
      if (first == pair->a->scalars.end() || second == pair->b->scalars.end()) continue;
      const double a = first->second;
      const double b = second->second;
      if (std::isnan(b) && !std::isnan(a)) {  // nothing is worse than no number
        change.worst = change.worst_share = std::numeric_limits<double>::infinity();
        change.worst_cell = place_of(*pair);
        ++change.lost;
      }
      if (std::isnan(a) || std::isnan(b)) continue;
      const double by = a == b ? 0.0 : b - a;  // inf − inf would be NaN
      ++change.cells;
      change.a += a;
      change.b += b;
      passages[passages_.of(*pair->row_a)].push_back(difference_of(*pair, metric));
      if (sign * by > change.worst) {
        change.worst = sign * by;
        change.worst_cell = place_of(*pair);
      }
      change.worst_share = std::max(change.worst_share, by == 0 ? 0.0 : sign * by / std::abs(a));
    }
    if (change.cells == 0 && change.lost == 0) return std::nullopt;
    change.a /= static_cast<double>(change.cells);
    change.b /= static_cast<double>(change.cells);
    change.passages = static_cast<int64_t>(passages.size());
    change.low = change.high = kNaN;
    std::vector<Sampled> means;
    for (const auto& [passage, differences] : passages) means.push_back(mean_of(differences));
    if (const auto interval = interval_of(means, /*whole_models=*/false)) {
      change.low = interval->low;
      change.high = interval->high;
    }
    return change;
  }

  void apply(const Limit& limit) {
    check_metric(result_, limit.metric, "--fail-above");
    for (const Change& change : result_.changes) {
      if (change.metric != limit.metric) continue;
      const double by = limit.is_relative ? change.worst_share : change.worst;
      if (!(by > limit.most)) continue;
      const double factor = limit.is_relative ? 100 : 1;
      const char* unit = limit.is_relative ? "%" : "";
      result_.failures.push_back(
          fmt::format("{}{} got worse by {:.4g}{} in {}, more than {:.4g}{}: {}", change.label,
                      change.point.empty() ? "" : " (" + change.point + ")", by * factor, unit,
                      change.worst_cell, limit.most * factor, unit, limit.metric));
    }
  }

  const store::Results& a_;
  const store::Results& b_;
  const Passages passages_;
  const Allowed& allowed_;
  std::vector<Paired> pairs_;
  int64_t lost_ = 0;  // complete rows of A without a complete partner
  Difference result_;
};

}  // namespace

void check_metric(const Difference& difference, const std::string& name, const char* option) {
  Words known;
  for (const metrics::MetricInfo& metric : metrics::catalog()) known.push_back(metric.name);
  for (const Change& change : difference.changes) {
    if (change.metric == name) return;
    add_once(&known, change.metric);
  }
  if (std::find(known.begin(), known.end(), name) != known.end()) {
    throw Error(fmt::format("{}: '{}' was not measured in both files", option, name));
  }
  throw Error(fmt::format("{}: there is no metric '{}'{}; kvlab list metrics has them all", option,
                          name, did_you_mean(name, known)));
}

Limit parse_limit(const std::string& text) {
  const size_t equals = text.find('=');
  Limit limit;
  limit.metric = text.substr(0, equals);
  std::string number = equals == std::string::npos ? "" : text.substr(equals + 1);
  limit.is_relative = number.ends_with('%');
  if (limit.is_relative) number.pop_back();
  const auto [end, error] =
      std::from_chars(number.data(), number.data() + number.size(), limit.most);
  if (error != std::errc{} || end != number.data() + number.size() || !(limit.most >= 0)) {
    throw Error(
        fmt::format("--fail-above: expected METRIC=X with X a number from 0 on, or a share such as "
                    "5%, found '{}'",
                    text));
  }
  if (limit.is_relative) limit.most /= 100;
  return limit;
}

Difference difference(const store::Results& a, const store::Results& b, const Allowed& allowed,
                      const std::vector<Limit>& limits) {
  return Comparison(a, b, allowed).run(limits);
}

}  // namespace kvlab::report
