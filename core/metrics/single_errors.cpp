#include "metrics/single_errors.h"

#include <cmath>

namespace kvlab::metrics {
namespace {

/// Products of matching rows of [P, n], float64 [P].
at::Tensor row_products(const at::Tensor& a, const at::Tensor& b) {
  return a.unsqueeze(1).bmm(b.unsqueeze(2)).flatten().to(at::kDouble);
}

}  // namespace

std::optional<ProbeErrors> key_errors(const ExactSingle& exact, const SingleProbes& probes) {
  ProbeErrors errors;
  errors.output = exact.output;
  const int64_t count = probes.q.size(0);
  const int64_t n = probes.k_read.defined() ? probes.k_read.size(0) : 0;
  if (n == 0) {
    errors.logit_mse = at::zeros({count}, at::kDouble);
    errors.kl = at::zeros({count}, at::kDouble);
    errors.top1 = at::ones({count}, at::kDouble);
    errors.key_error = at::zeros_like(exact.output);
    return errors;
  }

  // With δ = l̂ − l, ΣP̂ over tokens is (1 + S)·ΣP for S = ΣP·(e^δ − 1).
  constexpr double kMostGrowth = 80;  // e^80 is finite in float32
  constexpr double kLeastLeft = 0.01;
  const at::Tensor weights = exact.weights.narrow(1, probes.begin, n);
  const auto scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(probes.q.size(1))));
  at::Tensor delta = at::addmm(exact.logits.narrow(1, probes.begin, n), probes.q * scale,
                               probes.k_read.t(), /*beta=*/-1);
  delta.masked_fill_(probes.unread, 0.0f);
  const auto [least, most] = delta.aminmax();
  const bool is_small = most.item<double>() <= kMostGrowth && std::isfinite(least.item<double>());
  if (!is_small) return std::nullopt;

  const at::Tensor change = delta.expm1().mul_(weights);
  const at::Tensor sum = change.sum(-1).to(at::kDouble);
  if (!(sum.min().item<double>() > kLeastLeft - 1)) return std::nullopt;
  const at::Tensor by_values = change.matmul(probes.v.narrow(0, probes.begin, n)).to(at::kDouble);
  const at::Tensor column = sum.unsqueeze(-1);
  errors.key_error = (by_values - column * exact.output) / (column + 1);
  errors.kl = sum.log1p() - row_products(weights, delta);
  const at::Tensor visible = (probes.positions + 1).to(at::kDouble);
  errors.logit_mse = row_products(delta, delta) / visible;

  at::Tensor read = exact.logits.clone();
  read.narrow(1, probes.begin, n).add_(delta);
  errors.top1 = read.argmax(-1).eq(exact.strongest).to(at::kDouble);
  if (!errors.key_error.isfinite().all().item<bool>()) return std::nullopt;
  return errors;
}

}  // namespace kvlab::metrics
