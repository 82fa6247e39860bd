#pragma once

#include <ATen/ATen.h>

namespace kvlab::metrics {

/// Neighbouring positions that intervals resample together: what one token does wrong, the next
/// ones do too.
inline constexpr int64_t kBlockPositions = 128;

/// Sums over blocks of positions. over, under: float64 [B, H, P], what a metric is the ratio of
/// sums of; positions: int64 [P], ascending. Blocks are counted from position 0 on, apart for each
/// sequence, and those without a position are left out: float64 [H, blocks, 2].
at::Tensor block_sums(const at::Tensor& over, const at::Tensor& under, const at::Tensor& positions);

/// The same of one value a position, [P] each, whose metric is their mean: float64 [1, blocks, 2].
at::Tensor block_sums(const at::Tensor& values, int64_t first_position = 0);

}  // namespace kvlab::metrics
