#pragma once

#include <ATen/ATen.h>

namespace kvlab::quant {

/// Packs codes, uint8 [..., d] below 2^bits, into uint8 [..., d·bits/8]: code i of a row starts at
/// bit i·bits, low bits first. d·bits must be a multiple of 8.
at::Tensor pack(const at::Tensor& codes, int64_t bits);

/// The inverse: uint8 [..., d·bits/8] to uint8 [..., d].
at::Tensor unpack(const at::Tensor& packed, int64_t bits);

}  // namespace kvlab::quant
