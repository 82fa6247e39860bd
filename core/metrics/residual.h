#pragma once

#include "metrics/readback.h"

namespace kvlab::metrics {

/// What the residual e = k̂ − k looks like to the queries, and what the codec was given (after
/// OSCAR, arXiv:2605.17757, Table 10). C_Q is the mean of qᵀq over the stored queries of a KV
/// head's query heads, E_K the mean of eᵀe over the span.
class ResidualErrors {
 public:
  ResidualErrors(const data::Sample& sample, const calibrate::PreparedSide& key,
                 const Settings& codec, const cache::Windows& windows);

  void add(int64_t sequence, int64_t head, const Decoded& key);

  /// k_residual_trace = tr(C_Q·E_K); k_bits_needed = what reverse water-filling takes for it, where
  /// tokens were independent normals with the span's mean and covariance; k_importance = max over
  /// mean of the diagonal of RᵀC_Q·R; k_entering_max = max |k̃| and k_group_range = mean over groups
  /// of max k̃ − min k̃, k̃ being what enters the codec, before clipping. NaN where keys are not
  /// quantized or the span is empty.
  Arrays finish() const;

 private:
  const data::Sample& sample_;
  const calibrate::PreparedSide& key_;
  int64_t begin_, count_ = 0, group_ = 0;
  bool per_channel_ = false;
  at::Tensor scales_;          // token scales of the span, undefined where there are none
  at::Tensor error_;           // [Hkv, d, d] sums of eᵀe
  at::Tensor largest_;         // [Hkv]
  at::Tensor range_, groups_;  // [Hkv] sums over groups, and how many
};

}  // namespace kvlab::metrics
