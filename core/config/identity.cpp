#include "config/identity.h"

#include <algorithm>

#include "base/code_version.h"
#include "base/hash.h"
#include "config/sweep.h"
#include "method/schema.h"

namespace kvlab::config {
namespace {

using nlohmann::json;

json probes_of(const Probes& probes) {
  if (probes.placement == "all") return {{"placement", "all"}};
  return {{"count", probes.count}, {"placement", probes.placement}};
}

std::vector<std::string> sorted(std::vector<std::string> words) {
  std::sort(words.begin(), words.end());
  return words;
}

/// Defaults that a model had before it could be run otherwise are left out.
json run_of(const ModelRun& run) {
  json settings = {{"evaluation", run.evaluation},
                   {"prefill", run.prefill},
                   {"cache_dtype", kvlab::name_of(run.cache_dtype)}};
  if (run.device != ModelRun{}.device) settings["device"] = run.device;
  if (run.dtype != ModelRun{}.dtype) settings["forward_dtype"] = kvlab::name_of(run.dtype);
  return settings;
}

json stretch_of(const DatasetItem& item) {
  return {{"from", item.stretch.first}, {"tokens", item.stretch.count}};
}

/// Content of an item and what else of it decides the sample.
json source_of(const DatasetItem& item, const DatasetInfo& info) {
  json source = {{"source", item.source}, {"content", info.content}};
  if (item.source == "synthetic") source["params"] = used_params(item);
  if (item.allow_nonfinite) source["allow_nonfinite"] = true;
  if (item.stretch != data::Stretch{}) source["stretch"] = stretch_of(item);
  if (item.model) source["run"] = run_of(*item.model);
  return source;
}

/// How many levels a side's codes really take, null for a side that is not quantized.
json levels_used(const method::Recipe& recipe, const std::string& side) {
  const Settings codec = below(recipe.settings, side + ".codec.");
  if (get_text(codec, "kind") != "uniform") return nullptr;
  const int64_t codes = int64_t{1} << get_int(codec, "bits");
  return get_text(codec, "grid") == "symmetric" ? codes - 1 : codes;
}

json method_of(const Cell& cell, const CellInputs& inputs, const MethodUse& use) {
  json method = inputs.method;
  method["id"] = use.recipe.id;
  method["label"] = use.label;
  method["levels_used"] = json::object();
  for (const std::string& side : method::kSides) {
    method["levels_used"][side] = levels_used(cell.recipe, side);
    if (inputs.rotations.contains(side)) {
      method[side]["rotation_sha256"] = inputs.rotations.at(side);
    }
  }
  if (!inputs.requested.empty()) method["requested"] = inputs.requested;
  return method;
}

json dataset_of(const Cell& cell, const DatasetInfo& info) {
  json dataset = {{"source", cell.dataset.source}, {"label", cell.dataset.label},
                  {"text", cell.dataset.text},     {"sha256", info.content},
                  {"layer", cell.layer},           {"dtype", kvlab::name_of(info.dtype)},
                  {"batch", info.batch},           {"kv_heads", info.kv_heads},
                  {"q_heads", info.q_heads},       {"tokens", info.tokens},
                  {"head_dim", info.head_dim}};
  if (cell.dataset.source == "synthetic") {
    dataset["params"] = used_params(cell.dataset);
  } else {
    dataset["path"] = cell.dataset.path.string();
    if (!info.model.empty()) dataset["model"] = info.model;
  }
  if (const auto& model = cell.dataset.model) {
    dataset.update(run_of(*model));
    if (model->needles.empty()) {
      dataset["tokens_path"] = model->tokens.string();
      dataset["passage"] = model->passage;
    } else {
      dataset["needles_path"] = model->needles.string();
      dataset["task"] = model->task;
    }
    dataset["layers"] = info.model_layers;
  }
  return dataset;
}

json calibration_of(const Cell& cell, const CellInputs& inputs) {
  if (inputs.calibration == nullptr) return nullptr;
  const DatasetItem& item = cell.calibration.front();
  json calibration = {{"source", item.source},
                      {"sha256", inputs.calibration->content},
                      {"tokens", inputs.calibration->tokens}};
  if (item.source == "synthetic") {
    calibration["params"] = used_params(item);
  } else {
    calibration["path"] = item.path.string();
    if (item.stretch != data::Stretch{}) calibration["stretch"] = stretch_of(item);
  }
  return calibration;
}

}  // namespace

json identity_of(const Cell& cell, const CellInputs& inputs) {
  json method = inputs.method;
  // The content of a rotation file counts, not where it lies.
  for (const auto& [side, hash] : inputs.rotations.items()) method[side]["rotate"] = hash;
  json identity = {{"dataset", source_of(cell.dataset, inputs.info)},
                   {"layer", cell.layer},
                   {"method", std::move(method)},
                   {"backend", cell.backend},
                   {"probes", probes_of(cell.probes)},
                   {"measure", sorted(cell.measure)},
                   {"code_version", code_version()}};
  if (inputs.seed_used) identity["seed"] = cell.seed;
  if (inputs.calibration != nullptr) {
    identity["calibration"] = source_of(cell.calibration.front(), *inputs.calibration);
  }
  return identity;
}

std::string id_of(const json& identity) {
  constexpr size_t kIdDigits = 32;
  return sha256(identity.dump()).substr(0, kIdDigits);
}

json config_of(const Cell& cell, const CellInputs& inputs, const MethodUse& use,
               const json& sweep) {
  return {{"dataset", dataset_of(cell, inputs.info)},
          {"method", method_of(cell, inputs, use)},
          {"sweep", sweep},
          {"seed", cell.seed},
          {"seed_used", inputs.seed_used},
          {"backend", cell.backend},
          {"probes", probes_of(cell.probes)},
          {"measure", sorted(cell.measure)},
          {"calibration", calibration_of(cell, inputs)},
          {"code_version", code_version()}};
}

}  // namespace kvlab::config
