#pragma once

#include <ATen/ATen.h>

namespace kvlab::quant {

/// Packs codes, uint8 [..., d] below 2^bits, into uint8 [..., d·bits/8]: code i of a row starts at
/// bit i·bits, low bits first. d·bits must be a multiple of 8.
at::Tensor pack(const at::Tensor& codes, int64_t bits);

/// The inverse: uint8 [..., d·bits/8] to uint8 [..., d].
at::Tensor unpack(const at::Tensor& packed, int64_t bits);

/// The smallest integer type that holds 0 … largest: of a channel's index, or of a count.
at::ScalarType index_type(int64_t largest);

}  // namespace kvlab::quant
