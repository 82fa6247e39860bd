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

std::shared_ptr<const attention::Exact> SampleContext::compute(int64_t sequence, int64_t q_head) const {
  const int64_t head = q_head / sample_.group();
  return std::make_shared<const attention::Exact>(attention::exact_attention(
      sample_.q[sequence][q_head].to(at::kDouble), sample_.k[sequence][head].to(at::kDouble),
      sample_.v[sequence][head].to(at::kDouble), sample_.positions));
}

std::shared_ptr<const attention::Exact> SampleContext::exact(int64_t sequence, int64_t q_head) const {
  if (!keep_) return compute(sequence, q_head);
  const auto index = static_cast<size_t>(sequence * sample_.q_heads() + q_head);
  std::call_once(once_[index], [&] { kept_[index] = compute(sequence, q_head); });
  return kept_[index];
}

}  // namespace kvlab::metrics
