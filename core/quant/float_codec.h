#pragma once

#include <memory>

#include "quant/codec.h"

namespace kvlab::quant {

/// Floating-point codes of 8 or 4 bits, a scale a group of channels of one token or none: FP8, and
/// the block formats of the OCP Microscaling specification and of NVFP4. Values beyond the largest
/// finite one become that; rounding is to nearest, ties to even.
Part float_part();
std::unique_ptr<Codec> make_float(const Settings& codec, int64_t head_dim);

}  // namespace kvlab::quant
