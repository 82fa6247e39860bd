#pragma once

#include <ATen/ATen.h>

namespace kvlab::transform {

/// Mixes the tokens of each block of `block` by the normalized Hadamard matrix, channel by channel:
/// x float [..., n, d], n a multiple of the block. An option of OScaR's code (k_token_rotation, off
/// by default there), which takes it after the rotation of channels and before the norms. A power
/// of two is its own inverse.
at::Tensor rotate_tokens(const at::Tensor& x, int64_t block);

}  // namespace kvlab::transform
