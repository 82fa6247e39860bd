#pragma once

#include <ATen/ATen.h>

#include "base/part.h"

namespace kvlab::transform {

/// How a token's scale is taken and stored.
struct TokenScale {
  enum class Kind {
    none,
    l2_heads,
    l2_head,
    max_head,
    mean_abs_head,
    max_heads,
    mean_abs_heads,
  };
  enum class Params {
    fp32,
    fp16,
    bf16,
    fp8_e4m3,
    int8,      // round(16·log2 n), −127 … 127: from 2^−7.94 to 2^7.94 in steps of 4.4 %
    adaptive,  // fp16 below the threshold, fp8_e4m3 from it on, and a bit that says which
  };

  Kind kind = Kind::none;
  Params params = Params::fp32;
  bool rotate_first = true;  // order: rotate_scale
  bool inverse = false;      // norm_op: rsqrt, the stored number is 1/n
  double threshold = 1.0;    // of Params::adaptive

  static TokenScale from(const Settings& side);
  /// One number a token for all KV heads together.
  bool shared() const {
    return kind == Kind::l2_heads || kind == Kind::max_heads || kind == Kind::mean_abs_heads;
  }

  /// A measured scale n ≥ 0 as it is read back, float64: rounded to its type (beyond the type's
  /// largest it is that); 0, before or after rounding, is 1.
  at::Tensor stored(const at::Tensor& measured) const;

  /// Bits that the stored numbers take, int64 of the same shape.
  at::Tensor bits(const at::Tensor& stored) const;
};

}  // namespace kvlab::transform
