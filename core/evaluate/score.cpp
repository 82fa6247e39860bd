#include "evaluate/score.h"

#include <c10/core/GradMode.h>

#include <algorithm>
#include <limits>

namespace kvlab::evaluate {
namespace {

/// Logits and the logarithm of the sum of their exponentials.
struct Rows {
  at::Tensor logits;      // float32 [n, V]
  at::Tensor normalizer;  // float64 [n]

  explicit Rows(at::Tensor all) : logits(std::move(all)) {
    const at::Tensor most = logits.amax(-1, /*keepdim=*/true);
    normalizer = (logits - most).exp_().sum(-1, /*keepdim=*/false, at::kDouble).log_() +
                 most.squeeze(-1).to(at::kDouble);
  }

  at::Tensor nll(const at::Tensor& next) const {
    return normalizer - logits.gather(1, next.unsqueeze(1)).squeeze(1).to(at::kDouble);
  }
};

/// KL(p‖q) = Σ p·((x_p − x_q) − (z_p − z_q)), x logits and z normalizers.
at::Tensor divergence(const Rows& p, const Rows& q) {
  const at::Tensor weights = (p.logits - p.normalizer.to(at::kFloat).unsqueeze(1)).exp_();
  const at::Tensor difference = p.logits - q.logits;
  const at::Tensor mean = (weights * difference).sum(-1, /*keepdim=*/false, at::kDouble);
  const at::Tensor mass = weights.sum(-1, /*keepdim=*/false, at::kDouble);
  return (mean / mass - (p.normalizer - q.normalizer)).clamp_min_(0);
}

}  // namespace

Scores score(const model::Decoder& decoder, const at::Tensor& states, const at::Tensor& exact,
             const at::Tensor& tokens) {
  constexpr int64_t kRows = 128;  // 25 MB of logits at a vocabulary of 49,152
  const c10::NoGradGuard no_grad;
  std::vector<at::Tensor> nll, kl, top1, exact_nll;
  const int64_t last = tokens.size(0) - 1;
  for (int64_t from = 0; from < last; from += kRows) {
    const int64_t n = std::min(kRows, last - from);
    const Rows ours(decoder.logits(states.narrow(0, from, n)));
    const Rows theirs(decoder.logits(exact.narrow(0, from, n)));
    const at::Tensor next = tokens.narrow(0, from + 1, n).to(ours.logits.device());
    nll.push_back(ours.nll(next));
    exact_nll.push_back(theirs.nll(next));
    kl.push_back(divergence(theirs, ours));
    top1.push_back(ours.logits.argmax(-1).eq(theirs.logits.argmax(-1)).to(at::kDouble));
  }
  const auto all = [](const std::vector<at::Tensor>& parts) { return at::cat(parts).to(at::kCPU); };
  return {all(nll), all(exact_nll), all(kl), all(top1)};
}

metrics::Arrays perplexity(const Scores& scores, int64_t first) {
  const at::Tensor difference = scores.nll - scores.exact_nll;
  const int64_t skipped = before_tail(first);
  const int64_t left = difference.size(0) - skipped;
  const at::Tensor tail =
      left > 0 ? difference.narrow(0, skipped, left).mean()
               : at::scalar_tensor(std::numeric_limits<double>::quiet_NaN(), at::kDouble);
  return {{"nll", scores.nll.mean()},    {"ppl", scores.nll.mean().exp()},
          {"dnll", difference.mean()},   {"dnll_tail", tail},
          {"next_kl", scores.kl.mean()}, {"next_top1", scores.top1.mean()}};
}

}  // namespace kvlab::evaluate
