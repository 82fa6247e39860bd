#include "metrics/context.h"

namespace kvlab::metrics {

SampleContext::SampleContext(data::Sample sample, int64_t budget)
    : sample_(std::move(sample)),
      once_(static_cast<size_t>(sample_.batch() * sample_.q_heads())),
      kept_(once_.size()) {
  const int64_t rows = sample_.batch() * sample_.q_heads() * sample_.positions.size(0);
  const int64_t bytes = rows * (2 * sample_.tokens() + sample_.head_dim()) * 8;
  keep_ = bytes <= budget;
}

attention::Exact SampleContext::exact(int64_t sequence, int64_t q_head, const at::Tensor& k,
                                      const at::Tensor& v, int64_t first, int64_t count) const {
  const auto compute = [&](int64_t begin, int64_t n) {
    return attention::exact_attention(
        sample_.q[sequence][q_head].narrow(0, begin, n).to(at::kDouble), k, v,
        sample_.positions.narrow(0, begin, n));
  };
  if (!keep_) return compute(first, count);
  const auto index = static_cast<size_t>(sequence * sample_.q_heads() + q_head);
  std::call_once(once_[index], [&] { kept_[index] = compute(0, sample_.positions.size(0)); });
  const attention::Exact& all = kept_[index];
  return {all.logits.narrow(0, first, count), all.log_weights.narrow(0, first, count),
          all.output.narrow(0, first, count)};
}

}  // namespace kvlab::metrics
