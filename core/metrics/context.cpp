#include "metrics/context.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace kvlab::metrics {
namespace {

at::Tensor rows(const at::Tensor& x, int64_t first, int64_t count) {
  return x.narrow(0, first, count);
}

}  // namespace

SampleContext::SampleContext(data::Sample sample, int64_t budget)
    : sample_(std::move(sample)),
      exact_(static_cast<size_t>(sample_.batch() * sample_.q_heads())),
      single_(exact_.results.size()) {
  const int64_t queries = sample_.batch() * sample_.q_heads() * sample_.positions.size(0);
  const int64_t bytes = queries * (2 * sample_.tokens() + sample_.head_dim()) * 8;
  keep_ = bytes <= budget;
  keep_single_ = bytes / 2 <= budget;
}

const std::string& SampleContext::nonfinite() const {
  const auto is_finite = [](const at::Tensor& x) {  // head by head, so that temporaries stay small
    const std::vector<at::Tensor> heads = x.flatten(0, 1).unbind(0);
    return std::all_of(heads.begin(), heads.end(),
                       [](const at::Tensor& head) { return head.isfinite().all().item<bool>(); });
  };
  std::call_once(looked_, [&] {
    for (const auto& [name, x] :
         {std::pair{"keys", &sample_.k}, {"values", &sample_.v}, {"queries", &sample_.q}}) {
      if (nonfinite_.empty() && !is_finite(*x)) nonfinite_ = name;
    }
  });
  return nonfinite_;
}

attention::Exact SampleContext::exact(int64_t sequence, int64_t q_head, const at::Tensor& k,
                                      const at::Tensor& v, int64_t first, int64_t count) const {
  const auto compute = [&](int64_t begin, int64_t n) {
    return attention::exact_attention(rows(sample_.q[sequence][q_head], begin, n).to(at::kDouble),
                                      k, v, rows(sample_.positions, begin, n));
  };
  if (!keep_) return compute(first, count);
  const auto index = static_cast<size_t>(sequence * sample_.q_heads() + q_head);
  std::call_once(exact_.once[index],
                 [&] { exact_.results[index] = compute(0, sample_.positions.size(0)); });
  const attention::Exact& all = exact_.results[index];
  return {rows(all.logits, first, count), rows(all.log_weights, first, count),
          rows(all.output, first, count)};
}

ExactSingle SampleContext::exact_single(int64_t sequence, int64_t q_head, const at::Tensor& k,
                                        const at::Tensor& v, int64_t first, int64_t count) const {
  const auto compute = [&](int64_t begin, int64_t n) {
    ExactSingle exact;
    const auto scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(sample_.head_dim())));
    exact.logits =
        rows(sample_.q[sequence][q_head], begin, n).to(at::kFloat).matmul(k.t()).mul_(scale);
    const at::Tensor hidden = at::arange(k.size(0), at::kLong)
                                  .unsqueeze(0)
                                  .gt(rows(sample_.positions, begin, n).unsqueeze(1));
    exact.logits.masked_fill_(hidden, -std::numeric_limits<float>::infinity());
    exact.weights = exact.logits.softmax(-1);
    exact.output = exact.weights.matmul(v).to(at::kDouble);
    exact.strongest = exact.logits.argmax(-1);
    return exact;
  };
  if (!keep_single_) return compute(first, count);
  const auto index = static_cast<size_t>(sequence * sample_.q_heads() + q_head);
  std::call_once(single_.once[index],
                 [&] { single_.results[index] = compute(0, sample_.positions.size(0)); });
  const ExactSingle& all = single_.results[index];
  return {rows(all.logits, first, count), rows(all.weights, first, count),
          rows(all.output, first, count), rows(all.strongest, first, count)};
}

}  // namespace kvlab::metrics
