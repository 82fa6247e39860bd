#pragma once

#include <algorithm>

#include "metrics/measured.h"
#include "model/decoder.h"

namespace kvlab::evaluate {

/// How well a run predicted each next token: float64 [n − 1] on the host, entry i about token
/// i + 1.
struct Scores {
  at::Tensor nll;        // −log p(next token), nats
  at::Tensor exact_nll;  // the same of the exact run
  at::Tensor kl;         // KL(p‖p̂) from the exact run's distribution to this one's
  at::Tensor top1;       // 1 where both have the same most likely token
};

/// states, exact: [n, D] of the same tokens int64 [n], as Decoder::forward returned them. Sums are
/// taken in float64.
Scores score(const model::Decoder& decoder, const at::Tensor& states, const at::Tensor& exact,
             const at::Tensor& tokens);

/// Positions from which dnll_tail counts (contract section 7).
inline constexpr int64_t kTail = 512;

/// Scores before the tail, where they begin at position `first`.
inline int64_t before_tail(int64_t first) { return std::max<int64_t>(0, kTail - first); }

/// nll, ppl, dnll, dnll_tail, next_kl, next_top1 of scores that begin at position `first`.
metrics::Arrays perplexity(const Scores& scores, int64_t first);

}  // namespace kvlab::evaluate
