// How an experiment is run: probes, measures, seeds, backend.
#include <fmt/format.h>

#include <algorithm>

#include "base/names.h"
#include "config/reader.h"
#include "metrics_catalog/catalog.h"

namespace kvlab::config {
namespace {

using yaml::Node;

bool contains(const std::vector<std::string>& words, const std::string& word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

}  // namespace

Probes read_probes(const Node& node, Reading& reading) {
  Probes probes;
  yaml::Fields fields(node, "'probes'", reading.problems);
  if (const Node* placement = fields.get("placement")) {
    const std::vector<std::string> words = {"strided", "last", "all"};
    const auto text = yaml::read_text(*placement, "placement", reading.problems);
    if (text && !contains(words, *text)) {
      yaml::report(reading.problems, *placement,
                   fmt::format("'placement' must be one of {}, found '{}'{}", join(words), *text,
                               did_you_mean(*text, words)));
    } else if (text) {
      probes.placement = *text;
    }
  }
  if (const Node* count = fields.get("count")) {
    probes.count =
        yaml::read_int(*count, "count", reading.problems, 1, 1 << 24).value_or(probes.count);
    if (probes.placement == "all") {
      yaml::report(reading.problems, *count, "'count' means nothing with placement all");
    }
  }
  fields.finish();
  return probes;
}

std::optional<std::string> refused_backend(const std::string& backend) {
  const std::vector<std::string> words = {"reference", "cpu", "cuda"};
  if (contains(words, backend)) return std::nullopt;
  return fmt::format("'backend' must be one of {}, found '{}'{}", join(words), backend,
                     did_you_mean(backend, words));
}

std::optional<std::string> refused_measure(const std::string& measure,
                                           const Experiment& experiment) {
  if (!contains(metrics::measures(), measure)) {
    return fmt::format("unknown measure '{}'{}", measure, yaml::hint(measure, metrics::measures()));
  }
  // Where none could be read, that has been said, and nothing is known of their kind.
  if (experiment.datasets.empty()) return std::nullopt;
  const bool of_models = contains(metrics::model_measures(), measure);
  if (of_models && !has_models(experiment)) {
    return fmt::format("measure {} is of whole models: it needs a dataset with source: model",
                       measure);
  }
  const auto holds = [&](const DatasetItem& item) {
    return (measure == "needle") == !item.model->needles.empty();
  };
  if (of_models && std::none_of(experiment.datasets.begin(), experiment.datasets.end(), holds)) {
    return fmt::format("measure {} needs a model with '{}'", measure,
                       measure == "needle" ? "needles" : "tokens");
  }
  if (has_models(experiment) && !of_models && measure != "memory") {
    return fmt::format("measure {} is of samples; whole models have {} and memory", measure,
                       join(metrics::model_measures()));
  }
  if (measure == "kernel_time" && experiment.backend == "reference") {
    return "measure kernel_time needs a backend that has kernels; reference has none";
  }
  return std::nullopt;
}

std::string read_line(const Node& node, const std::string& what, Reading& reading) {
  const auto text = yaml::read_text(node, what, reading.problems);
  if (!text) return "";
  if (text->empty()) {
    yaml::report(reading.problems, node, fmt::format("'{}' is empty", what));
  } else if (has_control(*text)) {
    yaml::report(reading.problems, node,
                 fmt::format("'{}' must be one line without control characters, found {}", what,
                             yaml::describe(node)));
  }
  return *text;
}

std::string read_backend(const Node& node, Reading& reading) {
  const auto backend = yaml::read_text(node, "backend", reading.problems);
  if (!backend) return "reference";
  if (auto refused = refused_backend(*backend)) {
    yaml::report(reading.problems, node, *refused);
  }
  return *backend;
}

std::vector<std::string> read_measure(const Node& node, const Experiment& experiment,
                                      Reading& reading) {
  std::vector<std::string> words;
  if (!node.is_list() || node.items.empty()) {
    yaml::report(reading.problems, node,
                 "'measure' must be a list of " + join(metrics::measures()) + ", found " +
                     yaml::describe(node));
  }
  for (const Node& item : node.items) {
    const auto word = yaml::read_text(item, "measure", reading.problems);
    if (!word) continue;
    if (contains(words, *word)) {
      yaml::report(reading.problems, item, fmt::format("measure '{}' is listed twice", *word));
    } else if (auto refused = refused_measure(*word, experiment)) {
      yaml::report(reading.problems, item, *refused);
    }
    words.push_back(*word);
  }
  return words;
}

std::vector<int64_t> read_seeds(const Node& node, Reading& reading) {
  std::vector<int64_t> seeds;
  if (!node.is_list() || node.items.empty()) {
    yaml::report(reading.problems, node,
                 "'seeds' must be a list of whole numbers, found " + yaml::describe(node));
  }
  for (const Node& item : node.items) {
    const auto seed = yaml::read_int(item, "seeds", reading.problems, 0);
    if (!seed) continue;
    if (std::find(seeds.begin(), seeds.end(), *seed) != seeds.end()) {
      yaml::report(reading.problems, item, fmt::format("seed {} is listed twice", *seed));
    }
    seeds.push_back(*seed);
  }
  if (seeds.empty()) seeds.push_back(0);
  return seeds;
}

std::string plain(const nlohmann::json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

std::string settings_text(const std::vector<std::pair<std::string, nlohmann::json>>& settings) {
  std::string text;
  for (const auto& [key, value] : settings) {
    text += (text.empty() ? "" : ", ") + key + "=" + plain(value);
  }
  return text;
}

}  // namespace kvlab::config
