#include "run/describe.h"

#include "cache/packed_format.h"
#include "data/capture_info.h"
#include "data/synthetic.h"

namespace kvlab::run {

data::ProbeChoice choice(const config::Probes& probes) {
  return {.placement = probes.placement, .count = probes.count};
}

config::DatasetInfo describe(const config::DatasetItem& item, const config::Probes& probes) {
  const data::Description found = item.source == "synthetic"
                                      ? data::describe_synthetic(item.params, choice(probes))
                                      : data::describe_capture(item.path);
  config::DatasetInfo info;
  info.batch = found.batch;
  info.kv_heads = found.kv_heads;
  info.q_heads = found.q_heads;
  info.tokens = found.tokens;
  info.head_dim = found.head_dim;
  info.probes = found.probes;
  info.dtype = found.dtype;
  info.has_w_o = found.has_w_o;
  info.uses_seed = found.uses_seed;
  info.layers = found.layers;
  info.content = found.content;
  info.token_ids = found.token_ids;
  return info;
}

config::Plan make_plan(const config::Experiment& experiment) {
  const auto described = [&](const config::DatasetItem& item) {
    return describe(item, experiment.probes);
  };
  const auto refuse = [](const std::string& backend, const method::Recipe& recipe,
                         const config::DatasetInfo& data) -> std::optional<std::string> {
    if (backend == "reference") return std::nullopt;
    if (auto reason = cache::heads_refusal(data.q_heads, data.kv_heads)) return reason;
    return cache::packed_refusal(recipe.settings, data.head_dim, data.dtype);
  };
  return config::make_plan(experiment, described, refuse);
}

}  // namespace kvlab::run
