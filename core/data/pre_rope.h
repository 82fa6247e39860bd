#pragma once

#include "data/sample.h"

namespace kvlab::data {

/// Keys before RoPE with what turns them: methods that quantize there read them through it.
struct PreRope {
  at::Tensor keys;  // [B, Hkv, T, d]
  Rope rope;
};

/// Of a sample that is evaluated: its own k_pre, checked against its k. Throws Unsupported with the
/// reason where the sample has none, Error where RoPE does not turn them into k (to 1e-4 of the
/// largest key in float32, 2^-9 in fp16, 2^-6 in bf16: the two were rounded apart).
PreRope keys_before_rope(const Sample& sample);

/// Of a calibration sample: k_pre, or k turned back where the capture has none.
at::Tensor calibration_keys_before_rope(const Sample& sample);

}  // namespace kvlab::data
