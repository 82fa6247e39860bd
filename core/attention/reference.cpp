#include "attention/reference.h"

#include <cmath>
#include <limits>

namespace kvlab::attention {
namespace {

double logit_scale(const at::Tensor& q) { return 1.0 / std::sqrt(static_cast<double>(q.size(-1))); }

/// bool [P, n]: token `begin + i` lies before the probe's limit.
at::Tensor before(int64_t begin, int64_t n, const at::Tensor& limit) {
  return at::arange(begin, begin + n, at::kLong).unsqueeze(0).lt(limit.unsqueeze(1));
}

/// weights [P, n] times values [n, d], where weights of tokens that are not `read` [P, n] are 0.
/// Such a token must not reach the sum even if it is not finite, and 0 times NaN is NaN.
at::Tensor weighted(const at::Tensor& weights, const at::Tensor& values, const at::Tensor& read) {
  at::Tensor sum = weights.matmul(values);
  if (sum.isfinite().all().item<bool>()) return sum;
  const at::Tensor bad = values.isfinite().all(-1).logical_not();
  const at::Tensor spoilt = read.logical_and(bad).any(-1, /*keepdim=*/true);
  sum = weights.matmul(values.masked_fill(bad.unsqueeze(-1), 0.0));
  return sum.masked_fill(spoilt, std::numeric_limits<double>::quiet_NaN());
}

}  // namespace

Exact exact_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                      const at::Tensor& positions) {
  Exact exact;
  exact.logits = q.matmul(k.t()).mul_(logit_scale(q));
  const at::Tensor visible = before(0, k.size(0), positions + 1);
  exact.logits.masked_fill_(visible.logical_not(), -std::numeric_limits<double>::infinity());
  exact.log_weights = exact.logits.log_softmax(-1);
  exact.output = weighted(exact.log_weights.exp(), v, visible);
  return exact;
}

Read cached_attention(const at::Tensor& q, const HeadCache& cache, const Exact& exact,
                      const at::Tensor& positions) {
  Read read;
  read.logits = exact.logits;
  read.log_weights = exact.log_weights;
  read.key_error = at::zeros_like(exact.output);
  read.value_error = at::zeros_like(exact.output);
  read.evicted = cache.evicted;
  const at::Tensor end = positions + 1;
  // A boundary never passes the probe, but the span it is compared on ends at T.
  const auto decoded = [&](int64_t n, const at::Tensor& boundary) {
    const at::Tensor history = before(cache.begin, n, at::minimum(boundary, end));
    return cache.held.defined() ? history.logical_and(cache.held.logical_not()) : history;
  };

  const bool reads_keys = cache.k_read.defined() && cache.k_read.size(0) > 0;
  if (reads_keys || cache.evicted.defined()) {
    read.logits = exact.logits.clone();
    if (reads_keys) {
      const int64_t n = cache.k_read.size(0);
      const at::Tensor logits = q.matmul(cache.k_read.t()).mul_(logit_scale(q));
      at::Tensor history = read.logits.narrow(1, cache.begin, n);
      history.copy_(at::where(decoded(n, cache.key_boundary), logits, history));
    }
    if (cache.evicted.defined()) {
      read.logits.masked_fill_(cache.evicted, -std::numeric_limits<double>::infinity());
    }
    read.log_weights = read.logits.log_softmax(-1);
    const at::Tensor visible = before(0, cache.v.size(0), end);
    read.key_error = weighted(read.log_weights.exp() - exact.log_weights.exp(), cache.v, visible);
  }
  if (cache.v_read.defined() && cache.v_read.size(0) > 0) {
    const int64_t n = cache.v_read.size(0);
    at::Tensor reads = decoded(n, cache.value_boundary);
    if (cache.evicted.defined()) {
      reads = reads.logical_and(cache.evicted.narrow(1, cache.begin, n).logical_not());
    }
    const at::Tensor weights =
        read.log_weights.narrow(1, cache.begin, n).exp().masked_fill_(reads.logical_not(), 0.0);
    read.value_error = weighted(weights, cache.v_read - cache.v.narrow(0, cache.begin, n), reads);
  }
  return read;
}

}  // namespace kvlab::attention
