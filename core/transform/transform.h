#pragma once

#include <ATen/ATen.h>

#include "base/dtype.h"
#include "base/part.h"

namespace kvlab::transform {

/// How a token's scale is taken and stored.
struct TokenScale {
  enum class Kind { none, l2_heads, l2_head, max_head, mean_abs_head };
  Kind kind = Kind::none;
  DType params = DType::fp32;
  bool rotate_first = true;  // order: rotate_scale
  bool inverse = false;      // norm_op: rsqrt, the stored number is 1/n

  static TokenScale from(const Settings& side);
  /// One number a token for all KV heads together.
  bool shared() const { return kind == Kind::l2_heads; }
};

/// The normalized Hadamard matrix, float64 [d, d].
at::Tensor hadamard(int64_t head_dim);

/// A Haar-distributed orthogonal matrix, float64 [d, d], the same for the same seed.
at::Tensor random_orthogonal(int64_t head_dim, int64_t seed);

/// Two of them on the diagonal: of the first `first` channels and of the others.
at::Tensor random_orthogonal_parts(int64_t head_dim, int64_t first, int64_t seed);

/// What is done to one side between the captured tensor and the codec, and its inverse (contract
/// section 4.2). Row vectors: y = ((x − center)·R)/scale.
class Transform {
 public:
  /// center: [Hkv, d] or undefined. rotation: float64 [1 or Hkv, d, d] or undefined (none).
  Transform(at::Tensor center, at::Tensor rotation, TokenScale scale);

  /// Stored token scales of captured values x [B, Hkv, n, d]: float64, already rounded to their
  /// type, [B, 1, n] (shared) or [B, Hkv, n]; undefined where there are none. Works head by head to
  /// keep memory low.
  at::Tensor scales(const at::Tensor& x) const;

  /// One head: x [n, d] captured, scale [n] as stored or undefined. float32 [n, d], what enters the
  /// codec.
  at::Tensor forward(const at::Tensor& x, int64_t head, const at::Tensor& scale) const;

  /// The inverse: decoded float32 [n, d] to float64 [n, d] in the space of the captured tensor.
  at::Tensor backward(const at::Tensor& y, int64_t head, const at::Tensor& scale) const;

  /// q·k̂ = (q·R)·(k̂ in codec space) + q·center: the matrix for a query head of this KV head,
  /// undefined for none.
  at::Tensor rotation_of(int64_t head) const;

  const at::Tensor& center() const { return center_; }
  const at::Tensor& rotation() const { return rotation_; }
  const TokenScale& token_scale() const { return scale_; }

 private:
  at::Tensor centred(const at::Tensor& x, int64_t head) const;
  at::Tensor rotated(const at::Tensor& x, int64_t head) const;

  at::Tensor center_;
  at::Tensor rotation_;
  TokenScale scale_;
};

}  // namespace kvlab::transform
