#pragma once

#include <ATen/ATen.h>

namespace kvlab::attention {

/// Exact causal attention of some queries of one head, float64: what errors are measured against.
struct Exact {
  at::Tensor logits;       // [P, T] q·k/√d, −inf where a token lies behind the query
  at::Tensor log_weights;  // [P, T] log-softmax of it
  at::Tensor output;       // [P, d]
};

/// q [P, d], k and v [T, d], positions int64 [P].
Exact exact_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                      const at::Tensor& positions);

/// What one head's cache returns at each probe: decoded tokens where the history has them, captured
/// ones elsewhere.
struct HeadCache {
  at::Tensor k, v;            // [T, d] captured, float64
  at::Tensor k_read, v_read;  // [n, d] decoded tokens [begin, begin + n), float64; undefined: none
  int64_t begin = 0;
  at::Tensor key_boundary;    // int64 [P]: tokens [begin, boundary) are read decoded
  at::Tensor value_boundary;  // int64 [P]
  at::Tensor held;  // bool [P, n]: tokens of [begin, begin + n) that are read as captured all the
                    // same; undefined: none
  at::Tensor evicted;  // bool [P, T]: tokens that are not there any more; undefined: none
};

/// Attention through the cache: an evicted token has the logit −inf and the probability 0. The
/// error vectors add up to output − exact.output exactly.
struct Read {
  at::Tensor logits;       // [P, T]
  at::Tensor log_weights;  // [P, T]
  at::Tensor key_error;    // [P, d] (P̂ − P)·V
  at::Tensor value_error;  // [P, d] P̂·(V̂ − V)
  at::Tensor evicted;      // of the HeadCache
};

Read cached_attention(const at::Tensor& q, const HeadCache& cache, const Exact& exact,
                      const at::Tensor& positions);

}  // namespace kvlab::attention
