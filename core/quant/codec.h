#pragma once

#include <ATen/ATen.h>

#include <memory>
#include <vector>

#include "base/part.h"
#include "quant/kmeans.h"

namespace kvlab::quant {

/// What a codec keeps of [H, n, d] values: the buffers that would be held in memory, one row a
/// token (codes) and one row a token or token group (params), so that any history is a range of
/// rows.
struct Encoded {
  at::Tensor codes;              // uint8 [H, n, bytes of a row]
  at::Tensor params;             // [H, n or n/G, …] in the parameters' type
  std::vector<at::Tensor> more;  // what some codecs keep besides: planes, indices, sparse values
  /// int64 [n], where data decide how much that is: what each token's codes take with all that is
  /// kept besides, code_bytes() in sum. Undefined: the same for every row.
  at::Tensor token_bytes;
  at::Tensor
      saturated;  // int64 [H]: elements whose unclamped code of the unclipped value is out of range
  at::Tensor shared;  // what `encode` was given, for decoding; not part of what is held

  /// Bytes held: codes with all that is kept besides, and parameters.
  int64_t code_bytes() const;
  int64_t param_bytes() const;
};

/// A quantizer in tensor form. Arithmetic is float32 with one rounding an operation (contract
/// section 4.2).
class Codec {
 public:
  virtual ~Codec() = default;

  /// x: float32 [H, n, d], n a multiple of token_group. shared: what was prepared for these heads,
  /// [H, …]: calibrated clip thresholds [H], or a codebook as `shared_tensor` of its kind made it;
  /// else undefined.
  virtual Encoded encode(const at::Tensor& x, const at::Tensor& shared) const = 0;

  /// float32 [H, n, d]; float64 where the parameters are.
  virtual at::Tensor decode(const Encoded& encoded) const = 0;

  /// Bytes that all heads and tokens of a layer share beside `shared`: levels of a codebook.
  virtual int64_t shared_bytes() const { return 0; }
};

/// The codec that these settings ("kind", "bits", …) name. Throws Unsupported where it cannot serve
/// this head size.
std::unique_ptr<Codec> make_codec(const Settings& codec, int64_t head_dim);

/// The codebook of a codec that learns one (parts.h), as `encode` takes it, from calibration values
/// as they would enter the codec: x float32 [H, n, d]; weight likewise or undefined, for codecs
/// that weigh values.
at::Tensor learn_codebook(const Settings& codec, const at::Tensor& x, const at::Tensor& weight,
                          const Progress& progress);

}  // namespace kvlab::quant
