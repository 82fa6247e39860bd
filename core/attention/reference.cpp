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

}  // namespace

Exact exact_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                      const at::Tensor& positions) {
  Exact exact;
  exact.logits = q.matmul(k.t()).mul_(logit_scale(q));
  const at::Tensor visible = before(0, k.size(0), positions + 1);
  exact.logits.masked_fill_(visible.logical_not(), -std::numeric_limits<double>::infinity());
  exact.log_weights = exact.logits.log_softmax(-1);
  exact.output = exact.log_weights.exp().matmul(v);
  return exact;
}

Read cached_attention(const at::Tensor& q, const HeadCache& cache, const Exact& exact,
                      const at::Tensor& positions) {
  Read read;
  read.logits = exact.logits;
  read.log_weights = exact.log_weights;
  read.key_error = at::zeros_like(exact.output);
  read.value_error = at::zeros_like(exact.output);
  const at::Tensor end = positions + 1;

  if (cache.k_read.defined() && cache.k_read.size(0) > 0) {
    const int64_t n = cache.k_read.size(0);
    // A boundary never passes the probe, but the span it is compared on ends at T.
    const at::Tensor decoded = before(cache.begin, n, at::minimum(cache.key_boundary, end));
    const at::Tensor logits = q.matmul(cache.k_read.t()).mul_(logit_scale(q));
    read.logits = exact.logits.clone();
    at::Tensor history = read.logits.narrow(1, cache.begin, n);
    history.copy_(at::where(decoded, logits, history));
    read.log_weights = read.logits.log_softmax(-1);
    read.key_error = (read.log_weights.exp() - exact.log_weights.exp()).matmul(cache.v);
  }
  if (cache.v_read.defined() && cache.v_read.size(0) > 0) {
    const int64_t n = cache.v_read.size(0);
    const at::Tensor decoded = before(cache.begin, n, at::minimum(cache.value_boundary, end));
    const at::Tensor weights =
        read.log_weights.narrow(1, cache.begin, n).exp().masked_fill_(decoded.logical_not(), 0.0);
    read.value_error = weights.matmul(cache.v_read - cache.v.narrow(0, cache.begin, n));
  }
  return read;
}

}  // namespace kvlab::attention
