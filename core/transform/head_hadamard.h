#pragma once

#include <ATen/ATen.h>

namespace kvlab::transform {

/// Heads that share one Hadamard matrix: the largest power of two up to `most` that divides
/// kv_heads.
int64_t heads_together(int64_t kv_heads, int64_t most);

/// Multiplies the channels of each `heads` neighbouring heads, as one row of heads·d, by the
/// normalized Hadamard matrix of that size: x float [B, H, n, d] to the same shape and type. Throws
/// Unsupported where there is no such matrix.
at::Tensor rotate_heads(const at::Tensor& x, int64_t heads);

/// The inverse.
at::Tensor undo_rotate_heads(const at::Tensor& y, int64_t heads);

}  // namespace kvlab::transform
