// Whole models: the keys of `source: model`, and how an experiment runs them.
#include <fmt/format.h>

#include <algorithm>

#include "base/h5.h"
#include "base/names.h"
#include "config/document.h"
#include "config/reader.h"

namespace kvlab::config {
namespace {

using yaml::Node;

std::optional<std::string> read_choice(const Node& node, const std::string& key,
                                       const std::vector<std::string>& words, Reading& reading) {
  auto text = yaml::read_text(node, key, reading.problems);
  if (!text) return std::nullopt;
  if (std::find(words.begin(), words.end(), *text) != words.end()) return text;
  yaml::report(reading.problems, node,
               fmt::format("'{}' must be one of {}, found '{}'{}", key, join(words), *text,
                           did_you_mean(*text, words)));
  return std::nullopt;
}

const std::vector<std::string>& dtype_words() {
  static const std::vector<std::string> words = {"bf16", "fp16", "float32"};
  return words;
}

DType dtype_of(const std::string& word) {
  if (word == "bf16") return DType::bf16;
  return word == "fp16" ? DType::fp16 : DType::fp32;
}

}  // namespace

bool has_models(const Experiment& experiment) {
  return std::any_of(experiment.datasets.begin(), experiment.datasets.end(),
                     [](const DatasetItem& item) { return item.model.has_value(); });
}

void read_model(yaml::Fields& fields, const Node& node, DatasetItem& item, Reading& reading) {
  item.model.emplace();
  const auto path = [&](const char* key) -> std::filesystem::path {
    const Node* given = fields.get(key);
    if (given == nullptr) return {};
    const auto text = yaml::read_text(*given, key, reading.problems);
    return text ? resolve_path(*text, reading.folder, *given, reading.problems)
                : std::filesystem::path();
  };
  const bool has_tokens = node.find("tokens") != nullptr;
  const bool has_needles = node.find("needles") != nullptr;
  item.path = path("path");
  item.model->tokens = path("tokens");
  item.model->needles = path("needles");
  const auto choice = [&](const char* key, const std::vector<std::string>& words) {
    const Node* given = fields.get(key);
    return given != nullptr ? read_choice(*given, key, words, reading) : std::nullopt;
  };
  item.model->device = choice("device", {"cpu", "cuda"}).value_or("cpu");
  item.model->dtype = dtype_of(choice("dtype", dtype_words()).value_or("float32"));
  if (node.find("path") == nullptr) {
    yaml::report(reading.problems, node, "a model needs 'path': a Hugging Face folder");
  }
  if (has_tokens == has_needles) {
    yaml::report(reading.problems, node,
                 "a model needs 'tokens', a kvlab.tokens/1 file, or 'needles', a kvlab.needles/1 "
                 "file, and not both");
  }
  item.label = (has_tokens ? item.model->tokens : item.model->needles).stem().string();
  if (has_needles) return;
  // The number of passages; parts_of makes items of them.
  item.model->passage = 1;
  if (const Node* passages = fields.get("passages")) {
    item.model->passage =
        yaml::read_int(*passages, "passages", reading.problems, 1, 1 << 20).value_or(1);
  }
  if (const Node* length = fields.get("length")) {
    item.model->length = yaml::read_int(*length, "length", reading.problems, 2).value_or(0);
  }
}

std::vector<DatasetItem> parts_of(DatasetItem item, const Node& node, Reading& reading) {
  if (!item.model) return {std::move(item)};
  std::vector<DatasetItem> items;
  if (item.model->needles.empty()) {
    const int64_t count = item.model->passage;
    for (int64_t passage = 0; passage < count; ++passage) {
      items.push_back(item);
      items.back().model->passage = passage;
      if (count > 1) items.back().label += fmt::format(" passage {}", passage);
    }
    return items;
  }
  try {
    for (const std::string& task : h5::File::open(item.model->needles).children("/")) {
      items.push_back(item);
      items.back().model->task = task;
      items.back().label += " " + task;
    }
    if (items.empty()) {
      yaml::report(reading.problems, node,
                   item.model->needles.string() +
                       ": is empty, expected a group of prompts and answers for each task");
    }
  } catch (const Error& error) {
    yaml::report(reading.problems, node, error.what());
  }
  return items;
}

void check_sources(const std::vector<DatasetItem>& items, Reading& reading) {
  if (items.empty()) return;
  for (const DatasetItem& item : items) {
    if (item.source.empty() || item.model.has_value() == items.front().model.has_value()) continue;
    reading.problems.push_back(
        {item.mark.file, item.mark.line, item.mark.column,
         "an experiment is about whole models or about samples: 'source: model' cannot stand "
         "beside another source"});
    return;
  }
}

void read_model_settings(yaml::Fields& fields, Experiment& experiment, Reading& reading) {
  ModelRun run;
  const bool models = has_models(experiment);
  const auto choice = [&](const char* key, const std::vector<std::string>& words) -> std::string {
    const Node* node = fields.get(key);
    if (node == nullptr) return "";
    if (!models && !experiment.datasets.empty()) {
      yaml::report(
          reading.problems, *node,
          fmt::format("'{}' is of whole models: it needs a dataset with source: model", key));
    }
    return read_choice(*node, key, words, reading).value_or("");
  };
  const std::string evaluation = choice("evaluation", {"teacher_forced", "decode"});
  const std::string dtype = choice("cache_dtype", dtype_words());
  const std::string prefill = choice("prefill", {"streaming", "exact"});
  for (DatasetItem& item : experiment.datasets) {
    if (!item.model) continue;
    if (!evaluation.empty()) item.model->evaluation = evaluation;
    if (!prefill.empty()) item.model->prefill = prefill;
    if (!dtype.empty()) item.model->cache_dtype = dtype_of(dtype);
  }
}

}  // namespace kvlab::config
