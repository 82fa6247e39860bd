#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <string>

#include "base/dtype.h"
#include "data/rope.h"

namespace kvlab::data {

/// Keys and values of one layer with the queries of some positions, all after RoPE (contract
/// section 1). Query head i reads KV head i / (Hq / Hkv).
struct Sample {
  at::Tensor q;          // [B, Hq, P, d], stored dtype
  at::Tensor k;          // [B, Hkv, T, d], stored dtype
  at::Tensor v;          // [B, Hkv, T, d], stored dtype
  at::Tensor positions;  // int64 [P], ascending
  at::Tensor w_o;        // [D, Hq·d], undefined where there is none
  DType dtype = DType::fp32;
  int64_t layer = 0;
  std::string file = {};  // that it was read from, for messages; empty: drawn

  /// What only some methods ask for, read when they do. Each throws Unsupported with the reason
  /// where the source does not have it.
  struct More {
    std::function<at::Tensor()> k_pre;           // [B, Hkv, T, d] keys before RoPE, stored dtype
    std::function<Rope()> rope;                  // how RoPE turned them
    std::function<at::Tensor()> hidden_absmax;   // float32 [B, T]: max |hidden state| of a token
    std::function<at::Tensor()> grad_k, grad_v;  // [B, Hkv, T, d]: loss gradients of k and v
    std::function<at::Tensor()> every_query;     // [B, Hq, T, d], stored dtype
  };
  More more;

  int64_t batch() const { return k.size(0); }
  int64_t kv_heads() const { return k.size(1); }
  int64_t q_heads() const { return q.size(1); }
  int64_t group() const { return q_heads() / kv_heads(); }
  int64_t tokens() const { return k.size(2); }
  int64_t head_dim() const { return k.size(3); }
};

}  // namespace kvlab::data
