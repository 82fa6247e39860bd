#pragma once

#include <ATen/ATen.h>

#include "base/dtype.h"
#include "base/part.h"

namespace kvlab::quant {

at::ScalarType scalar_type(DType type);

/// The type that a setting names: fp32, fp16 or bf16.
DType float_type(const Settings& settings, const std::string& key);

/// The largest finite value of a type.
double largest(DType type);

/// float32 values limited to the finite range of `type` and rounded to it (ties to even); float32
/// again.
at::Tensor round_to(const at::Tensor& x, DType type);

}  // namespace kvlab::quant
