#include "metrics/attention.h"

namespace kvlab::metrics {
namespace {

at::Tensor counters(int64_t q_heads) { return at::zeros({q_heads}, at::kDouble); }

at::Tensor square_sum(const at::Tensor& x) { return x.square().sum(); }

/// Cosine of matching rows; a zero vector has none and counts as 0.
at::Tensor cosine(const at::Tensor& a, const at::Tensor& b) {
  return ratio((a * b).sum(-1), (a.square().sum(-1) * b.square().sum(-1)).sqrt());
}

}  // namespace

ProbeErrors probe_errors(const attention::Exact& exact, const attention::Read& read) {
  const at::Tensor hidden = exact.logits.eq(-std::numeric_limits<double>::infinity());
  const at::Tensor visible_tokens = hidden.logical_not().sum(-1).to(at::kDouble);
  const at::Tensor logit_error = (read.logits - exact.logits).masked_fill_(hidden, 0.0);
  const at::Tensor log_ratio = (exact.log_weights - read.log_weights).masked_fill_(hidden, 0.0);
  ProbeErrors probes;
  probes.logit_mse = logit_error.square_().sum(-1) / visible_tokens;
  probes.kl = exact.log_weights.exp().mul_(log_ratio).sum(-1);
  probes.top1 = exact.logits.argmax(-1).eq(read.logits.argmax(-1)).to(at::kDouble);
  probes.output = exact.output;
  probes.key_error = read.key_error;
  probes.value_error = read.value_error;
  return probes;
}

AttentionErrors::AttentionErrors(int64_t sequences, int64_t q_heads, at::Tensor w_o)
    : q_heads_(q_heads),
      w_o_(std::move(w_o)),
      probes_(counters(q_heads)),
      logit_(counters(q_heads)),
      kl_(counters(q_heads)),
      top1_(counters(q_heads)),
      cosine_(counters(q_heads)),
      error_(counters(q_heads)),
      key_(counters(q_heads)),
      value_(counters(q_heads)),
      norm_(counters(q_heads)),
      vectors_(static_cast<size_t>(sequences), std::vector<Vectors>(static_cast<size_t>(q_heads))) {
}

void AttentionErrors::add(int64_t sequence, int64_t q_head, const ProbeErrors& probes) {
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
  Vectors& vectors = vectors_[static_cast<size_t>(sequence)][static_cast<size_t>(q_head)];
  vectors.output.push_back(probes.output);
  vectors.key_error.push_back(probes.key_error);
  vectors.value_error.push_back(probes.value_error);
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
  for (const std::vector<Vectors>& heads : vectors_) {
    std::vector<at::Tensor> output, key_error, value_error;
    for (const Vectors& head : heads) {
      output.push_back(at::cat(head.output));
      key_error.push_back(at::cat(head.key_error));
      value_error.push_back(at::cat(head.value_error));
    }
    const at::Tensor from_key = at::cat(key_error, -1).matmul(projection);
    const at::Tensor from_value = at::cat(value_error, -1).matmul(projection);
    error += square_sum(from_key + from_value);
    key += square_sum(from_key);
    value += square_sum(from_value);
    norm += square_sum(at::cat(output, -1).matmul(projection));
  }
  arrays["wo_rel"] = ratio(error.sqrt(), norm.sqrt());
  arrays["wo_rel_k"] = ratio(key.sqrt(), norm.sqrt());
  arrays["wo_rel_v"] = ratio(value.sqrt(), norm.sqrt());
  return arrays;
}

Arrays AttentionErrors::by_probe() const {
  std::vector<at::Tensor> errors, norms;
  for (const std::vector<Vectors>& heads : vectors_) {
    std::vector<at::Tensor> error, norm;
    for (const Vectors& head : heads) {
      error.push_back((at::cat(head.key_error) + at::cat(head.value_error)).square().sum(-1));
      norm.push_back(at::cat(head.output).square().sum(-1));
    }
    errors.push_back(at::stack(error));
    norms.push_back(at::stack(norm));
  }
  return {{"out_se", at::stack(errors)}, {"out_ss", at::stack(norms)}};
}

}  // namespace kvlab::metrics
