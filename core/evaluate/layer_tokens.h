#pragma once

#include <ATen/ATen.h>

#include "data/sample.h"
#include "model/decoder.h"

namespace kvlab::evaluate {

/// Tokens of one layer as its cache meets them.
struct LayerTokens {
  at::Tensor k, v;           // [Hkv, n, d], rounded to the cache's type, k after RoPE
  at::Tensor k_pre;          // [Hkv, n, d] keys before RoPE, rounded apart
  at::Tensor hidden_absmax;  // float32 [n]: largest magnitude of what enters the layer

  int64_t size() const { return k.size(1); }
  LayerTokens narrow(int64_t from, int64_t n) const;
};

/// On the host. Throws Error where a key or value is not finite or not within the cache's type.
LayerTokens tokens_of(const model::LayerInput& input, DType dtype);

LayerTokens joined(const LayerTokens& before, const LayerTokens& after);

/// A sample of one sequence whose only query is the last one of q [Hq, n, d]. Methods that look at
/// every query get q where it has one a token. rope: what turned k_pre into k, where these tokens
/// begin at its origin.
data::Sample sample_of(const LayerTokens& tokens, const at::Tensor& q, DType dtype,
                       const data::Rope& rope);

}  // namespace kvlab::evaluate
