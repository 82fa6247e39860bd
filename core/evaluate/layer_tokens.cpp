#include "evaluate/layer_tokens.h"

#include <fmt/format.h>

#include <cmath>

#include "base/error.h"
#include "quant/rounding.h"

namespace kvlab::evaluate {

LayerTokens LayerTokens::narrow(int64_t from, int64_t n) const {
  return {k.narrow(1, from, n), v.narrow(1, from, n), k_pre.narrow(1, from, n),
          hidden_absmax.narrow(0, from, n)};
}

LayerTokens tokens_of(const model::LayerInput& input, DType dtype) {
  const auto rounded = [&](const at::Tensor& x, const char* what) {
    at::Tensor held = x.to(at::kCPU).to(quant::scalar_type(dtype));
    if (held.isfinite().all().item<bool>()) return held;
    const auto largest = x.abs().max().item<double>();
    if (!std::isfinite(largest)) {
      throw Error(fmt::format("layer {}: {} are not finite", input.layer, what));
    }
    throw Error(fmt::format("layer {}: {} reach {:.3g}, which cache_dtype {} cannot hold",
                            input.layer, what, largest, name_of(dtype)));
  };
  return {rounded(input.k, "keys"), rounded(input.v, "values"), rounded(input.k_pre, "keys"),
          input.hidden.abs().amax(-1).to(at::kCPU).to(at::kFloat)};
}

LayerTokens joined(const LayerTokens& before, const LayerTokens& after) {
  return {at::cat({before.k, after.k}, 1), at::cat({before.v, after.v}, 1),
          at::cat({before.k_pre, after.k_pre}, 1),
          at::cat({before.hidden_absmax, after.hidden_absmax})};
}

data::Sample sample_of(const LayerTokens& tokens, const at::Tensor& q, DType dtype,
                       const data::Rope& rope) {
  const at::Tensor queries = q.to(at::kCPU);
  data::Sample sample;
  sample.k = tokens.k.unsqueeze(0);
  sample.v = tokens.v.unsqueeze(0);
  sample.q = queries.narrow(1, q.size(1) - 1, 1).to(quant::scalar_type(dtype)).unsqueeze(0);
  sample.positions = at::tensor({tokens.size() - 1}, at::kLong);
  sample.dtype = dtype;
  sample.more.k_pre = [k_pre = tokens.k_pre] { return k_pre.unsqueeze(0); };
  sample.more.rope = [rope = rope]() mutable {
    rope.frequencies = rope.frequencies.to(at::kCPU);
    return rope;
  };
  sample.more.hidden_absmax = [largest = tokens.hidden_absmax] { return largest.unsqueeze(0); };
  sample.more.every_query = [queries, count = tokens.size()] {
    if (queries.size(1) != count) {
      throw Unsupported(
          "whole models: the queries of all tokens are there with evaluation: teacher_forced and "
          "prefill: streaming alone");
    }
    return queries.unsqueeze(0);
  };
  return sample;
}

}  // namespace kvlab::evaluate
