#include "transform/transform.h"

#include <cmath>

#include "base/error.h"
#include "data/draws.h"
#include "quant/rounding.h"
#include "transform/hadamard.h"

namespace kvlab::transform {
namespace {

/// Sum, maximum or mean of one head's rows, float64 [n]; sums of squares for the L2 kinds.
at::Tensor head_measure(const at::Tensor& y, TokenScale::Kind kind) {
  switch (kind) {
    case TokenScale::Kind::max_head:
      return y.abs().amax(-1);
    case TokenScale::Kind::mean_abs_head:
      return y.abs().mean(-1);
    default:
      return y.square().sum(-1);
  }
}

/// A measured scale as it is stored: rounded to its type; 0, before or after rounding, is 1.
at::Tensor stored(const at::Tensor& measured, const TokenScale& scale) {
  const at::Tensor zero = measured.eq(0);
  const at::Tensor number = scale.inverse ? measured.reciprocal() : measured;
  const at::Tensor rounded =
      quant::round_to(number.masked_fill(zero, 1.0).to(at::kFloat), scale.params).to(at::kDouble);
  return rounded.masked_fill(rounded.eq(0), 1.0);
}

}  // namespace

TokenScale TokenScale::from(const Settings& side) {
  TokenScale scale;
  const std::string kind = get_text(side, "token_scale");
  if (kind == "none") return scale;
  scale.kind = kind == "l2_heads"   ? Kind::l2_heads
               : kind == "l2_head"  ? Kind::l2_head
               : kind == "max_head" ? Kind::max_head
                                    : Kind::mean_abs_head;
  const std::string params = get_text(side, "token_scale_params");
  scale.params = params == "fp32" ? DType::fp32 : params == "fp16" ? DType::fp16 : DType::bf16;
  scale.rotate_first = get_text(side, "order") == "rotate_scale";
  scale.inverse = get_text(side, "norm_op") == "rsqrt" && kind.starts_with("l2");
  return scale;
}

at::Tensor hadamard(int64_t head_dim) {
  const std::vector<int8_t> signs = hadamard_signs(head_dim);
  return at::tensor(at::ArrayRef<int8_t>(signs), at::kDouble).reshape({head_dim, head_dim}) /
         std::sqrt(static_cast<double>(head_dim));
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
    : center_(std::move(center)), rotation_(std::move(rotation)), scale_(scale) {}

at::Tensor Transform::rotation_of(int64_t head) const {
  if (!rotation_.defined()) return {};
  return rotation_[rotation_.size(0) == 1 ? 0 : head];
}

at::Tensor Transform::centred(const at::Tensor& x, int64_t head) const {
  const at::Tensor wide = x.to(at::kDouble);
  return center_.defined() ? wide - center_[head].to(at::kDouble) : wide;
}

at::Tensor Transform::rotated(const at::Tensor& x, int64_t head) const {
  const at::Tensor rotation = rotation_of(head);
  return rotation.defined() ? x.matmul(rotation) : x;
}

at::Tensor Transform::scales(const at::Tensor& x) const {
  if (scale_.kind == TokenScale::Kind::none) return {};
  const int64_t heads = x.size(1);
  std::vector<at::Tensor> measures;
  for (int64_t head = 0; head < heads; ++head) {
    // Batch rows and tokens are alike here.
    at::Tensor y = centred(x.select(1, head), head);
    if (scale_.rotate_first) y = rotated(y, head);
    measures.push_back(head_measure(y, scale_.kind));
  }
  at::Tensor measured = at::stack(measures, 1);
  if (scale_.kind == TokenScale::Kind::l2_heads) measured = measured.sum(1, true).sqrt();
  if (scale_.kind == TokenScale::Kind::l2_head) measured = measured.sqrt();
  return stored(measured, scale_);
}

at::Tensor Transform::forward(const at::Tensor& x, int64_t head, const at::Tensor& scale) const {
  at::Tensor y = centred(x, head);
  if (!scale.defined()) return rotated(y, head).to(at::kFloat);
  const at::Tensor column = scale.unsqueeze(-1);
  const auto scaled = [&](const at::Tensor& z) { return scale_.inverse ? z * column : z / column; };
  y = scale_.rotate_first ? scaled(rotated(y, head)) : rotated(scaled(y), head);
  return y.to(at::kFloat);
}

at::Tensor Transform::backward(const at::Tensor& y, int64_t head, const at::Tensor& scale) const {
  at::Tensor x = y.to(at::kDouble);
  const at::Tensor rotation = rotation_of(head);
  // A scale is one number a token: it commutes with the rotation.
  if (scale.defined()) x = scale_.inverse ? x / scale.unsqueeze(-1) : x * scale.unsqueeze(-1);
  if (rotation.defined()) x = x.matmul(rotation.t());
  if (center_.defined()) x = x + center_[head].to(at::kDouble);
  return x;
}

}  // namespace kvlab::transform
