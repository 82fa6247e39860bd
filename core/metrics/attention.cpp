#include "metrics/attention.h"

#include <limits>

#include "metrics/blocks.h"

namespace kvlab::metrics {
namespace {

/// Squared norms of [B, P, H, d] as [B, H, P].
at::Tensor by_head(const at::Tensor& vectors) {
  return vectors.square().sum(-1).transpose(1, 2).contiguous();
}

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

AttentionErrors::AttentionErrors(const at::Tensor& q, at::Tensor positions, at::Tensor w_o)
    : positions_(std::move(positions)), w_o_(std::move(w_o)) {
  for (at::Tensor* values : {&logit_, &kl_, &top1_, &cosine_}) {
    *values = at::zeros({q.size(0), q.size(1), q.size(2)}, at::kDouble);
  }
  for (at::Tensor* vectors : {&output_, &key_error_, &value_error_}) {
    *vectors = at::zeros({q.size(0), q.size(2), q.size(1), q.size(3)}, at::kDouble);
  }
}

void AttentionErrors::add(int64_t sequence, int64_t q_head, int64_t first,
                          const ProbeErrors& probes) {
  const auto keep = [&](const at::Tensor& all, const at::Tensor& some) {
    all[sequence][q_head].narrow(0, first, some.size(0)).copy_(some);
  };
  keep(logit_, probes.logit_mse);
  keep(kl_, probes.kl);
  keep(top1_, probes.top1);
  keep(cosine_, cosine(probes.output, probes.output + probes.key_error + probes.value_error));
  const auto keep_vectors = [&](const at::Tensor& vectors, const at::Tensor& some) {
    vectors[sequence].select(1, q_head).narrow(0, first, some.size(0)).copy_(some);
  };
  keep_vectors(output_, probes.output);
  keep_vectors(key_error_, probes.key_error);
  keep_vectors(value_error_, probes.value_error);
}

void AttentionErrors::finish(Arrays& metrics, Arrays& blocks) const {
  const at::Tensor ones = at::ones_like(kl_);
  const auto mean = [&](const char* name, const at::Tensor& of) {
    metrics[name] = of.mean(kSequenceAndToken);
    // One probe counts as much in every head.
    blocks[name] = block_sums(of.mean(1, true), ones.narrow(1, 0, 1), positions_);
  };
  mean("logit_mse", logit_);
  mean("attn_kl", kl_);
  mean("attn_top1", top1_);
  mean("out_cos", cosine_);

  // error, norm: squared, [B, H, P].
  const auto ratio_of_norms = [&](const std::string& name, const at::Tensor& error,
                                  const at::Tensor& norm) {
    const auto sum = [](const at::Tensor& x) { return x.sum(kSequenceAndToken).sqrt(); };
    metrics[name] = ratio(sum(error), sum(norm));
    blocks[name] = block_sums(error, norm, positions_);
  };
  const at::Tensor norm = by_head(output_);
  ratio_of_norms("out_rel", by_head(key_error_ + value_error_), norm);
  ratio_of_norms("out_rel_k", by_head(key_error_), norm);
  ratio_of_norms("out_rel_v", by_head(value_error_), norm);
  if (!w_o_.defined()) return;

  // All heads of a sequence side by side, [P, Hq·d], times W_Oᵀ.
  const at::Tensor projection = w_o_.to(at::kDouble).t();
  std::vector<at::Tensor> errors, keys, values, norms;
  for (int64_t sequence = 0; sequence < output_.size(0); ++sequence) {
    const auto projected = [&](const at::Tensor& vectors) {
      return vectors[sequence].flatten(1).matmul(projection);
    };
    const auto squared = [](const at::Tensor& vectors) { return vectors.square().sum(-1); };
    const at::Tensor from_key = projected(key_error_);
    const at::Tensor from_value = projected(value_error_);
    errors.push_back(squared(from_key + from_value));
    keys.push_back(squared(from_key));
    values.push_back(squared(from_value));
    norms.push_back(squared(projected(output_)));
  }
  const auto stacked = [](const std::vector<at::Tensor>& of) { return at::stack(of).unsqueeze(1); };
  const at::Tensor projected_norm = stacked(norms);
  ratio_of_norms("wo_rel", stacked(errors), projected_norm);
  ratio_of_norms("wo_rel_k", stacked(keys), projected_norm);
  ratio_of_norms("wo_rel_v", stacked(values), projected_norm);
  for (const char* name : {"wo_rel", "wo_rel_k", "wo_rel_v"}) metrics[name] = metrics[name][0];
}

Arrays AttentionErrors::by_probe() const {
  return {{"out_se", by_head(key_error_ + value_error_)}, {"out_ss", by_head(output_)}};
}

}  // namespace kvlab::metrics
