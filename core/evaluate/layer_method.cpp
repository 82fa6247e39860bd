#include "evaluate/layer_method.h"

#include "base/error.h"
#include "cache/schedule.h"
#include "metrics_catalog/catalog.h"
#include "quant/rounding.h"

namespace kvlab::evaluate {

data::Sample captured(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, DType dtype) {
  const at::ScalarType type = quant::scalar_type(dtype);
  const int64_t last = k.size(1) - 1;
  data::Sample sample;
  sample.k = k.to(at::kCPU).to(type).unsqueeze(0);
  sample.v = v.to(at::kCPU).to(type).unsqueeze(0);
  sample.q = q.narrow(1, q.size(1) - 1, 1).to(at::kCPU).to(type).unsqueeze(0);
  sample.positions = at::tensor({last}, at::kLong);
  sample.dtype = dtype;
  return sample;
}

ReadTokens read_back(const data::Sample& sample, const LayerMethod& method,
                     const std::string& backend) {
  const metrics::SampleContext context(sample);
  const cache::Schedule schedule(method.recipe.settings, sample);
  if (schedule.protects() || schedule.evicts()) {
    throw Unsupported(
        "whole models: tokens that are protected or evicted are not read apart; samples have them");
  }
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
