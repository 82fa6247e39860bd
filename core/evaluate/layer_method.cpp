#include "evaluate/layer_method.h"

#include "cache/schedule.h"
#include "metrics_catalog/catalog.h"

namespace kvlab::evaluate {

LayerMethods on_all_layers(const method::Recipe& recipe, const model::Config& model,
                           const std::vector<calibrate::CalibrationSample>& samples) {
  calibrate::CalibrationStore store{{}};
  LayerMethods methods;
  for (int64_t layer = 0; layer < model.layers; ++layer) {
    std::optional<calibrate::CalibrationSample> sample;
    if (!samples.empty()) sample = samples[static_cast<size_t>(layer)];
    methods.push_back(
        {recipe, calibrate::prepare(recipe, model.kv_heads, model.head_dim, layer,
                                    /*seed=*/0, sample, store, [](int64_t, int64_t) {})});
  }
  return methods;
}

ReadTokens read_back(const data::Sample& sample, const LayerMethod& method,
                     const std::string& backend, const cache::Schedule& schedule) {
  const metrics::SampleContext context(sample);
  const auto readback =
      metrics::make_readback(backend, context, method.prepared, method.recipe, schedule);
  const auto side = [&](metrics::WhichSide which) {
    std::vector<at::Tensor> heads;
    for (int64_t head = 0; head < sample.kv_heads(); ++head) {
      const at::Tensor values = readback->decode(which, 0, head).values;
      if (!values.defined()) return at::Tensor();
      heads.push_back(values.to(at::kFloat));
    }
    return at::stack(heads);
  };
  ReadTokens read;
  read.begin = schedule.windows().begin();
  read.k = side(metrics::WhichSide::key);
  read.v = side(metrics::WhichSide::value);
  read.memory = metrics::memory(
      readback->bytes(metrics::WhichSide::key), readback->bytes(metrics::WhichSide::value),
      [&](int64_t tokens) { return readback->padding(tokens); }, schedule, sample.tokens());
  return read;
}

metrics::Arrays over_layers(const std::vector<metrics::Arrays>& layers) {
  metrics::Arrays result;
  for (const auto& [name, first] : layers.front()) {
    const metrics::MetricInfo* info = metrics::find_metric(name);
    std::vector<at::Tensor> values;
    for (const metrics::Arrays& layer : layers) values.push_back(layer.at(name));
    const at::Tensor all = at::stack(values);
    // A layer that quantizes nothing has no bits of its history.
    result[name] = info != nullptr && info->is_count ? all.sum() : all.nanmean();
  }
  return result;
}

}  // namespace kvlab::evaluate
