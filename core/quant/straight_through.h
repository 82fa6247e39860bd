#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <optional>

namespace kvlab::quant {

/// Quantizes and decodes float32 [H, n, d] as the uniform codec does (axis token, grid float_zero,
/// rounding half_up, params fp32, clip_scope group, the group at most d), with the gradient of
/// OptR's code (`quant_int2_ste`):
///  - rounding and the limits of the codes pass the gradient straight through;
///  - lo, hi and the scale are differentiated, their gradient shared evenly by all elements that
///  attain lo or hi;
///  - a group's clip threshold is a constant: elements beyond it pass no gradient, one equal to it
///  half.
at::Tensor straight_through(const at::Tensor& x, int64_t bits, int64_t group,
                            std::optional<double> clip);

}  // namespace kvlab::quant
