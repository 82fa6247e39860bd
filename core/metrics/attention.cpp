#include "metrics/attention.h"

#include <limits>

namespace kvlab::metrics {
namespace {

at::Tensor square_sum(const at::Tensor& x) { return x.square().sum(); }

/// Cosine of matching rows; a zero vector has none and counts as 0.
at::Tensor cosine(const at::Tensor& a, const at::Tensor& b) {
  return ratio((a * b).sum(-1), (a.square().sum(-1) * b.square().sum(-1)).sqrt());
}

}  // namespace

ProbeErrors probe_errors(const attention::Exact& exact, const attention::Read& read) {
  // Behind the probe, or dropped: there is no logit to be wrong about.
  const at::Tensor behind = exact.logits.eq(-std::numeric_limits<double>::infinity());
  at::Tensor unread = behind;
  at::Tensor weightless = behind;
  const at::Tensor weights = exact.log_weights.exp();
  if (read.evicted.defined()) {
    unread = behind.logical_or(read.evicted);
    // A dropped token that had weight is an infinite divergence, one that had none is none.
    weightless = behind.logical_or(read.evicted.logical_and(weights.eq(0)));
  }
  const at::Tensor read_tokens = unread.logical_not().sum(-1).to(at::kDouble);
  const at::Tensor logit_error = (read.logits - exact.logits).masked_fill_(unread, 0.0);
  const at::Tensor log_ratio = (exact.log_weights - read.log_weights).masked_fill_(weightless, 0.0);
  ProbeErrors probes;
  probes.logit_mse = logit_error.square_().sum(-1) / read_tokens;
  probes.kl = weights.mul(log_ratio).sum(-1);
  probes.top1 = exact.logits.argmax(-1).eq(read.logits.argmax(-1)).to(at::kDouble);
  probes.output = exact.output;
  probes.key_error = read.key_error;
  probes.value_error = read.value_error;
  return probes;
}

AttentionErrors::AttentionErrors(const at::Tensor& q, at::Tensor w_o) : w_o_(std::move(w_o)) {
  for (at::Tensor* sum :
       {&probes_, &logit_, &kl_, &top1_, &cosine_, &error_, &key_, &value_, &norm_}) {
    *sum = at::zeros({q.size(1)}, at::kDouble);
  }
  for (at::Tensor* vectors : {&output_, &key_error_, &value_error_}) {
    *vectors = at::zeros({q.size(0), q.size(2), q.size(1), q.size(3)}, at::kDouble);
  }
}

void AttentionErrors::add(int64_t sequence, int64_t q_head, int64_t first,
                          const ProbeErrors& probes) {
  logit_[q_head] += probes.logit_mse.sum();
  kl_[q_head] += probes.kl.sum();
  top1_[q_head] += probes.top1.sum();
  probes_[q_head] += static_cast<double>(probes.output.size(0));

  const at::Tensor error = probes.key_error + probes.value_error;
  cosine_[q_head] += cosine(probes.output, probes.output + error).sum();
  error_[q_head] += square_sum(error);
  key_[q_head] += square_sum(probes.key_error);
  value_[q_head] += square_sum(probes.value_error);
  norm_[q_head] += square_sum(probes.output);
  const auto keep = [&](const at::Tensor& vectors, const at::Tensor& some) {
    vectors[sequence].select(1, q_head).narrow(0, first, some.size(0)).copy_(some);
  };
  keep(output_, probes.output);
  keep(key_error_, probes.key_error);
  keep(value_error_, probes.value_error);
}

Arrays AttentionErrors::finish() const {
  Arrays arrays = {
      {"logit_mse", logit_ / probes_},
      {"attn_kl", kl_ / probes_},
      {"attn_top1", top1_ / probes_},
      {"out_rel", ratio(error_.sqrt(), norm_.sqrt())},
      {"out_rel_k", ratio(key_.sqrt(), norm_.sqrt())},
      {"out_rel_v", ratio(value_.sqrt(), norm_.sqrt())},
      {"out_cos", cosine_ / probes_},
  };
  if (!w_o_.defined()) return arrays;

  // All heads of a sequence side by side, [P, Hq·d], times W_Oᵀ.
  const at::Tensor projection = w_o_.to(at::kDouble).t();
  at::Tensor error = at::zeros({}, at::kDouble);
  at::Tensor key = at::zeros({}, at::kDouble);
  at::Tensor value = at::zeros({}, at::kDouble);
  at::Tensor norm = at::zeros({}, at::kDouble);
  for (int64_t sequence = 0; sequence < output_.size(0); ++sequence) {
    const auto projected = [&](const at::Tensor& vectors) {
      return vectors[sequence].flatten(1).matmul(projection);
    };
    const at::Tensor from_key = projected(key_error_);
    const at::Tensor from_value = projected(value_error_);
    error += square_sum(from_key + from_value);
    key += square_sum(from_key);
    value += square_sum(from_value);
    norm += square_sum(projected(output_));
  }
  arrays["wo_rel"] = ratio(error.sqrt(), norm.sqrt());
  arrays["wo_rel_k"] = ratio(key.sqrt(), norm.sqrt());
  arrays["wo_rel_v"] = ratio(value.sqrt(), norm.sqrt());
  return arrays;
}

Arrays AttentionErrors::by_probe() const {
  const auto by_head = [](const at::Tensor& vectors) {
    return vectors.square().sum(-1).transpose(1, 2).contiguous();
  };
  return {{"out_se", by_head(key_error_ + value_error_)}, {"out_ss", by_head(output_)}};
}

}  // namespace kvlab::metrics
