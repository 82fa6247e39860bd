#pragma once

#include <ATen/ATen.h>

#include "base/part.h"
#include "transform/hadamard.h"
#include "transform/token_scale.h"

namespace kvlab::transform {

/// The normalized Hadamard matrix, float64 [d, d].
at::Tensor hadamard(int64_t head_dim);

/// The same for each `block` channels, on the diagonal; 0: all of them are one block.
at::Tensor block_hadamard(int64_t head_dim, int64_t block);

/// D₁·H·D₂ with signs before and after the Hadamard matrix (of each block), float64 [d, d]. signs:
/// ±1 [d].
at::Tensor signed_hadamard(const at::Tensor& before, const at::Tensor& after, int64_t block = 0);

/// The same with signs drawn from the seed.
at::Tensor signed_hadamard(int64_t head_dim, int64_t seed, int64_t block = 0);

/// A Haar-distributed orthogonal matrix, float64 [d, d], the same for the same seed.
at::Tensor random_orthogonal(int64_t head_dim, int64_t seed);

/// Two of them on the diagonal: of the first `first` channels and of the others.
at::Tensor random_orthogonal_parts(int64_t head_dim, int64_t first, int64_t seed);

/// A side's linear stages: y = x·M for row vectors, M = order, then basis and rotation.
struct Linear {
  at::Tensor order;   // int64 [Hkv·d]: channel i of all heads side by side comes from order[i];
                      // undefined: as it is
  at::Tensor matrix;  // float64 [1 or Hkv/heads, heads·d, heads·d] of what follows; undefined: none
  at::Tensor inverse;      // of it; undefined: the transpose, it is orthogonal
  int64_t heads = 1;       // adjacent KV heads that the matrix mixes, side by side in a row vector
  bool all_heads = false;  // all heads are transformed together whatever mixes them
  int64_t mixed_tokens = 0;  // tokens that are mixed afterwards (rotate_tokens); 0: none
};

/// What is done to one side between the captured tensor and the codec, and its inverse (contract
/// section 4.2). Row vectors: y = ((x − center)·M)/scale.
class Transform {
 public:
  /// center: [Hkv, d] or undefined. rotation: float64 [1 or Hkv, d, d] or undefined (none).
  Transform(at::Tensor center, at::Tensor rotation, TokenScale scale);
  /// kv_heads: of the layer, all of which an order mixes.
  Transform(at::Tensor center, Linear linear, TokenScale scale, int64_t kv_heads);

  /// Adjacent KV heads that are transformed together.
  int64_t heads() const { return together_; }

  /// Stored token scales of captured values x [B, Hkv, n, d]: float64, already rounded to their
  /// type, [B, 1, n] (shared) or [B, Hkv, n]; undefined where there are none. Works a few heads at
  /// a time to keep memory low.
  at::Tensor scales(const at::Tensor& x) const;

  /// x: captured values of the KV heads from `head` on that are transformed together, [heads, n,
  /// d], or [n, d] of one; scale: theirs as stored, [n] or [heads, n], or undefined. float32 of the
  /// same shape, what enters the codec. Where tokens are mixed, n is a multiple of their block.
  at::Tensor forward(const at::Tensor& x, int64_t head, const at::Tensor& scale) const;

  /// The inverse: decoded float32 to float64 in the space of the captured tensor.
  at::Tensor backward(const at::Tensor& y, int64_t head, const at::Tensor& scale) const;

  /// Loss gradients of what enters the codec from those of the captured values g, shapes as of
  /// `forward`: g·M⁻ᵀ·scale, the stored scale taken as a constant.
  at::Tensor gradient(const at::Tensor& g, int64_t head, const at::Tensor& scale) const;

  /// q·k̂ = (q·D)·(k̂ in codec space) + q·center where each head is transformed by itself: the
  /// matrix D for a query head of this KV head, M itself where it is orthogonal, else M⁻ᵀ;
  /// undefined for none.
  at::Tensor query_matrix(int64_t head) const;

  /// M for this KV head, likewise.
  at::Tensor rotation_of(int64_t head) const;

  const at::Tensor& center() const { return center_; }
  const at::Tensor& rotation() const { return linear_.matrix; }
  const TokenScale& token_scale() const { return scale_; }

 private:
  at::Tensor centred(const at::Tensor& x, int64_t head) const;
  at::Tensor mixed(const at::Tensor& x, const at::Tensor& matrices, int64_t head) const;
  at::Tensor tokens_mixed(const at::Tensor& x) const;
  at::Tensor rotated(const at::Tensor& x, int64_t head) const;
  at::Tensor rotated_back(const at::Tensor& y, int64_t head) const;

  at::Tensor center_;
  Linear linear_;
  int64_t together_ = 1;
  TokenScale scale_;
};

}  // namespace kvlab::transform
