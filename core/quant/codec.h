#pragma once

#include <ATen/ATen.h>

#include <memory>

#include "base/part.h"

namespace kvlab::quant {

/// What a codec keeps of [H, n, d] values: the buffers that would be held in memory, one row a
/// token (codes) and one row a token or token group (params), so that any history is a range of
/// rows.
struct Encoded {
  at::Tensor codes;   // uint8 [H, n, d·bits/8]
  at::Tensor params;  // [H, n or n/G, groups, 1 or 2] in the parameters' type
  at::Tensor
      saturated;  // int64 [H]: elements whose unclamped code of the unclipped value is out of range
};

/// A quantizer in tensor form. Arithmetic is float32 with one rounding an operation (contract
/// section 4.2).
class Codec {
 public:
  virtual ~Codec() = default;

  /// x: float32 [H, n, d], n a multiple of token_group. threshold: [H] where clipping is
  /// calibrated, else undefined.
  virtual Encoded encode(const at::Tensor& x, const at::Tensor& threshold) const = 0;

  /// float32 [H, n, d].
  virtual at::Tensor decode(const Encoded& encoded) const = 0;
};

/// The codec that these settings ("kind", "bits", …) name. Throws Unsupported where it cannot serve
/// this head size.
std::unique_ptr<Codec> make_codec(const Settings& codec, int64_t head_dim);

}  // namespace kvlab::quant
