#include "metrics/residual.h"

#include <algorithm>
#include <limits>

#include "metrics/water_filling.h"

namespace kvlab::metrics {

ResidualErrors::ResidualErrors(const data::Sample& sample, const calibrate::PreparedSide& key,
                               const Settings& codec, const cache::Windows& windows)
    : sample_(sample), key_(key), begin_(windows.begin()) {
  if (key.passthrough) return;
  count_ = windows.span_end() - begin_;
  const auto axis = codec.find("axis");
  const auto group = codec.find("group");
  per_channel_ = axis != codec.end() && axis->second == "channel";
  if (group != codec.end()) group_ = group->second.get<int64_t>();
  // A per-token group larger than the head is the head.
  if (!per_channel_) group_ = std::min(group_, sample.head_dim());
  scales_ = key.transform.scales(sample.k.narrow(2, begin_, count_));
  error_ = at::zeros({sample.kv_heads(), sample.head_dim(), sample.head_dim()}, at::kDouble);
  largest_ = at::zeros({sample.kv_heads()}, at::kDouble);
  range_ = at::zeros({sample.kv_heads()}, at::kDouble);
  groups_ = at::zeros({sample.kv_heads()}, at::kDouble);
}

void ResidualErrors::add(int64_t sequence, int64_t head, const Decoded& key) {
  if (key_.passthrough || count_ == 0) return;
  const at::Tensor captured = sample_.k[sequence][head].narrow(0, begin_, count_);
  const at::Tensor error = key.values.to(at::kDouble) - captured.to(at::kDouble);
  error_[head] += error.t().matmul(error);

  at::Tensor scale;
  if (scales_.defined()) scale = scales_[sequence][scales_.size(1) == 1 ? 0 : head];
  const at::Tensor entering = key_.transform.forward(captured, head, scale).to(at::kDouble);
  largest_[head].copy_(at::maximum(largest_[head], entering.abs().max()));
  if (group_ == 0) return;
  const int64_t grouped = per_channel_ ? 0 : 1;
  const at::Tensor in_groups =
      entering.unflatten(grouped, {entering.size(grouped) / group_, group_});
  const at::Tensor range = in_groups.amax(grouped + 1) - in_groups.amin(grouped + 1);
  range_[head] += range.sum();
  groups_[head] += static_cast<double>(range.numel());
}

Arrays ResidualErrors::finish() const {
  const int64_t heads = sample_.kv_heads();
  const at::Tensor none = at::full({heads}, std::numeric_limits<double>::quiet_NaN(), at::kDouble);
  Arrays arrays = {{"k_residual_trace", none.clone()},
                   {"k_bits_needed", none.clone()},
                   {"k_importance", none.clone()},
                   {"k_entering_max", none.clone()},
                   {"k_group_range", none.clone()}};
  if (key_.passthrough || count_ == 0) return arrays;
  const auto tokens = static_cast<double>(sample_.batch() * count_);
  for (int64_t head = 0; head < heads; ++head) {
    const at::Tensor q = sample_.q.narrow(1, head * sample_.group(), sample_.group())
                             .to(at::kDouble)
                             .reshape({-1, sample_.head_dim()});
    const at::Tensor covariance = q.t().matmul(q) / static_cast<double>(q.size(0));
    const at::Tensor trace = (covariance * error_[head]).sum() / tokens;
    arrays["k_residual_trace"][head] = trace;
    const at::Tensor keys =
        sample_.k.select(1, head).narrow(1, begin_, count_).reshape({-1, sample_.head_dim()});
    arrays["k_bits_needed"][head] =
        reverse_water_filling(seen_variances(keys, covariance), trace.item<double>());
    const at::Tensor rotation = key_.transform.rotation_of(head);
    const at::Tensor seen =
        rotation.defined() ? rotation.t().matmul(covariance).matmul(rotation) : covariance;
    const at::Tensor importance = seen.diagonal();
    arrays["k_importance"][head] = importance.max() / importance.mean();
  }
  arrays["k_entering_max"] = largest_;
  if (group_ > 0) arrays["k_group_range"] = range_ / groups_;
  return arrays;
}

}  // namespace kvlab::metrics
