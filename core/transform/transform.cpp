#include "transform/transform.h"

#include <cmath>

#include "base/error.h"
#include "data/draws.h"
#include "quant/rounding.h"
#include "transform/hadamard.h"
#include "transform/reorder.h"
#include "transform/token_hadamard.h"

namespace kvlab::transform {
namespace {

/// Sum, maximum or mean of one head's rows, float64 [n]; sums of squares for the L2 kinds.
at::Tensor head_measure(const at::Tensor& y, TokenScale::Kind kind) {
  switch (kind) {
    case TokenScale::Kind::max_head:
    case TokenScale::Kind::max_heads:
      return y.abs().amax(-1);
    case TokenScale::Kind::mean_abs_head:
    case TokenScale::Kind::mean_abs_heads:
      return y.abs().mean(-1);
    default:
      return y.square().sum(-1);
  }
}

}  // namespace

at::Tensor hadamard(int64_t head_dim) {
  const std::vector<int8_t> signs = hadamard_signs(head_dim);
  return at::tensor(at::ArrayRef<int8_t>(signs), at::kDouble).reshape({head_dim, head_dim}) /
         std::sqrt(static_cast<double>(head_dim));
}

at::Tensor block_hadamard(int64_t head_dim, int64_t block) {
  if (block == 0 || block == head_dim) return hadamard(head_dim);
  return at::block_diag(
      std::vector<at::Tensor>(static_cast<size_t>(head_dim / block), hadamard(block)));
}

at::Tensor signed_hadamard(const at::Tensor& before, const at::Tensor& after, int64_t block) {
  return before.to(at::kDouble).unsqueeze(1) * block_hadamard(before.size(0), block) *
         after.to(at::kDouble).unsqueeze(0);
}

at::Tensor signed_hadamard(int64_t head_dim, int64_t seed, int64_t block) {
  const data::Draws draws(seed, /*passage=*/0);
  const auto signs = [&](uint64_t row) {
    at::Tensor normal = at::empty({head_dim}, at::kDouble);
    draws.normals(data::Stream::signs, row, head_dim, normal.data_ptr<double>());
    return at::where(normal.lt(0), at::scalar_tensor(-1.0, at::kDouble),
                     at::scalar_tensor(1.0, at::kDouble));
  };
  return signed_hadamard(signs(0), signs(1), block);
}

at::Tensor random_orthogonal(int64_t head_dim, int64_t seed) {
  at::Tensor normal = at::empty({head_dim, head_dim}, at::kDouble);
  const data::Draws draws(seed, /*passage=*/0);
  for (int64_t row = 0; row < head_dim; ++row) {
    draws.normals(data::Stream::rotation, static_cast<uint64_t>(row), head_dim,
                  normal[row].data_ptr<double>());
  }
  // QR of a Gaussian matrix is Haar-distributed once the signs of R's diagonal are moved into Q.
  const auto [q, r] = at::linalg_qr(normal);
  return q * r.diagonal().sign().unsqueeze(0);
}

at::Tensor random_orthogonal_parts(int64_t head_dim, int64_t first, int64_t seed) {
  // The second matrix takes a stream that no seed of the first reaches.
  constexpr int64_t kSecond = int64_t{1} << 41;
  return at::block_diag(
      {random_orthogonal(first, seed), random_orthogonal(head_dim - first, seed + kSecond)});
}

Transform::Transform(at::Tensor center, at::Tensor rotation, TokenScale scale)
    : Transform(std::move(center),
                Linear{.order = {}, .matrix = std::move(rotation), .inverse = {}}, scale,
                /*kv_heads=*/1) {}

Transform::Transform(at::Tensor center, Linear linear, TokenScale scale, int64_t kv_heads)
    : center_(std::move(center)), linear_(std::move(linear)), scale_(scale) {
  together_ = linear_.order.defined() || linear_.all_heads ? kv_heads : linear_.heads;
}

at::Tensor Transform::rotation_of(int64_t head) const {
  if (!linear_.matrix.defined()) return {};
  return linear_.matrix[linear_.matrix.size(0) == 1 ? 0 : head];
}

at::Tensor Transform::query_matrix(int64_t head) const {
  if (!linear_.inverse.defined()) return rotation_of(head);
  return linear_.inverse[linear_.inverse.size(0) == 1 ? 0 : head].t();
}

at::Tensor Transform::centred(const at::Tensor& x, int64_t head) const {
  const at::Tensor wide = x.to(at::kDouble);
  if (!center_.defined()) return wide;
  const at::Tensor center = center_.narrow(0, head, x.dim() == 3 ? x.size(0) : 1);
  return wide - (x.dim() == 3 ? center.unsqueeze(1) : center).to(at::kDouble);
}

/// x times the matrix of its heads: as [n, heads·d] where several stand side by side.
at::Tensor Transform::mixed(const at::Tensor& x, const at::Tensor& matrices, int64_t head) const {
  if (together_ == 1) return x.matmul(matrices[matrices.size(0) == 1 ? 0 : head]);
  const int64_t sets = x.size(0) / linear_.heads;
  const at::Tensor rows = x.unflatten(0, {sets, linear_.heads}).transpose(1, 2).flatten(2);
  const at::Tensor matrix =
      matrices.size(0) == 1 ? matrices : matrices.narrow(0, head / linear_.heads, sets);
  return rows.matmul(matrix)
      .unflatten(2, {linear_.heads, x.size(2)})
      .transpose(1, 2)
      .reshape(x.sizes());
}

at::Tensor Transform::tokens_mixed(const at::Tensor& x) const {
  return linear_.mixed_tokens > 0 ? rotate_tokens(x, linear_.mixed_tokens) : x;
}

at::Tensor Transform::rotated(const at::Tensor& x, int64_t head) const {
  const at::Tensor placed = linear_.order.defined() ? reorder(x.unsqueeze(0), linear_.order)[0] : x;
  return tokens_mixed(linear_.matrix.defined() ? mixed(placed, linear_.matrix, head) : placed);
}

at::Tensor Transform::rotated_back(const at::Tensor& y, int64_t head) const {
  at::Tensor x = tokens_mixed(y);  // its own inverse
  if (linear_.inverse.defined()) {
    x = mixed(x, linear_.inverse, head);
  } else if (linear_.matrix.defined()) {
    x = mixed(x, linear_.matrix.transpose(1, 2), head);
  }
  return linear_.order.defined() ? undo_reorder(x.unsqueeze(0), linear_.order)[0] : x;
}

at::Tensor Transform::scales(const at::Tensor& x) const {
  if (scale_.kind == TokenScale::Kind::none) return {};
  std::vector<at::Tensor> measures;
  for (int64_t head = 0; head < x.size(1); head += together_) {
    // Batch rows and tokens are alike here.
    std::vector<at::Tensor> sequences;
    for (int64_t b = 0; b < x.size(0); ++b) {
      at::Tensor y = centred(x[b].narrow(0, head, together_), head);
      if (scale_.rotate_first) y = rotated(y, head);
      sequences.push_back(head_measure(y, scale_.kind));
    }
    measures.push_back(at::stack(sequences));
  }
  at::Tensor measured = at::cat(measures, 1);
  if (scale_.kind == TokenScale::Kind::max_heads) measured = measured.amax(1, true);
  if (scale_.kind == TokenScale::Kind::mean_abs_heads) measured = measured.mean(1, true);
  if (scale_.kind == TokenScale::Kind::l2_heads) measured = measured.sum(1, true).sqrt();
  if (scale_.kind == TokenScale::Kind::l2_head) measured = measured.sqrt();
  return scale_.stored(measured);
}

at::Tensor Transform::forward(const at::Tensor& x, int64_t head, const at::Tensor& scale) const {
  at::Tensor y = centred(x, head);
  if (!scale.defined()) return rotated(y, head).to(at::kFloat);
  const at::Tensor column = scale.unsqueeze(-1);
  const auto scaled = [&](const at::Tensor& z) { return scale_.inverse ? z * column : z / column; };
  y = scale_.rotate_first ? scaled(rotated(y, head)) : rotated(scaled(y), head);
  return y.to(at::kFloat);
}

at::Tensor Transform::gradient(const at::Tensor& g, int64_t head, const at::Tensor& scale) const {
  const auto scaled = [&](const at::Tensor& z) {
    if (!scale.defined()) return z;
    const at::Tensor column = scale.unsqueeze(-1);
    return scale_.inverse ? z / column : z * column;
  };
  at::Tensor y = g.to(at::kDouble);
  if (!scale_.rotate_first) y = scaled(y);
  if (linear_.inverse.defined()) {
    if (linear_.order.defined()) y = reorder(y.unsqueeze(0), linear_.order)[0];
    y = tokens_mixed(mixed(y, linear_.inverse.transpose(1, 2), head));
  } else {
    y = rotated(y, head);
  }
  if (scale_.rotate_first) y = scaled(y);
  return y.to(at::kFloat);
}

at::Tensor Transform::backward(const at::Tensor& y, int64_t head, const at::Tensor& scale) const {
  at::Tensor x = y.to(at::kDouble);
  const auto unscale = [&] {
    if (!scale.defined()) return;
    const at::Tensor column = scale.unsqueeze(-1);
    x = scale_.inverse ? x / column : x * column;
  };
  // A head's own scale does not commute with what mixes heads.
  if (scale_.rotate_first) unscale();
  x = rotated_back(x, head);
  if (!scale_.rotate_first) unscale();
  if (!center_.defined()) return x;
  const at::Tensor center = center_.narrow(0, head, x.dim() == 3 ? x.size(0) : 1);
  return x + (x.dim() == 3 ? center.unsqueeze(1) : center).to(at::kDouble);
}

}  // namespace kvlab::transform
