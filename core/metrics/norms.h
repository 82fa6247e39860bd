#pragma once

#include "metrics/measured.h"

namespace kvlab::metrics {

/// Largest over smallest entry of norms [..., n] along the last dimension; a zero norm gives inf,
/// also where all are zero. NaN where n is 0.
at::Tensor norm_ratio(const at::Tensor& norms);

/// tni_ratio, tni_ratio_heads and tni_cv of captured keys' norms [B, Hkv, T], averaged over
/// sequences.
Arrays norm_imbalance(const at::Tensor& norms);

/// tni_block_ratio, tni_bound and tni_block_mse over whole blocks of `block` tokens. norms: [B,
/// Hkv, n] of captured keys from the first quantized token on; errors: [B, Hkv, n] Σ_c e² of each
/// token. NaN where there is no whole block.
Arrays block_imbalance(const at::Tensor& norms, const at::Tensor& errors, int64_t block,
                       int64_t bits);

}  // namespace kvlab::metrics
