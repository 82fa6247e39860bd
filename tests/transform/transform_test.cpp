#include "transform/transform.h"

#include <ATen/ATen.h>

#include <cmath>

#include "catch.h"
#include "quant/codec.h"
#include "quant/plain_codec.h"

using namespace kvlab;
using transform::TokenScale;
using transform::Transform;
using Kind = transform::TokenScale::Kind;
using Params = transform::TokenScale::Params;

namespace {

TokenScale scale_of(Kind kind, Params params = Params::fp32, bool rotate_first = true,
                    bool inverse = false) {
  TokenScale scale;
  scale.kind = kind;
  scale.params = params;
  scale.rotate_first = rotate_first;
  scale.inverse = inverse;
  return scale;
}

/// [1, 2, 1, 2]: one token whose heads are (3, −4) and (0, 12).
at::Tensor two_heads() { return at::tensor({3.f, -4.f, 0.f, 12.f}).reshape({1, 2, 1, 2}); }

std::vector<double> list(const at::Tensor& x) {
  const at::Tensor flat = x.to(at::kDouble).flatten().contiguous();
  return {flat.const_data_ptr<double>(), flat.const_data_ptr<double>() + flat.numel()};
}

/// One token [1, 1, 1, n] of norm |value|.
at::Tensor token_of(double value) {
  return at::tensor({value, 0.0, 0.0, 0.0}, at::kDouble).reshape({1, 1, 1, 4});
}

double stored_scale(double norm, Params params, bool inverse = false) {
  return Transform({}, {}, scale_of(Kind::l2_head, params, true, inverse))
      .scales(token_of(norm))
      .item<double>();
}

}  // namespace

TEST_CASE("D51 token scales by hand: L2 over all heads or each, maximum and mean", "[transform]") {
  const auto scales = [](Kind kind) {
    return Transform({}, {}, scale_of(kind)).scales(two_heads());
  };
  CHECK(scales(Kind::l2_heads).sizes() == at::IntArrayRef({1, 1, 1}));
  CHECK(list(scales(Kind::l2_heads)) == std::vector<double>{13});
  CHECK(list(scales(Kind::l2_head)) == std::vector<double>{5, 12});
  CHECK(list(scales(Kind::max_head)) == std::vector<double>{4, 12});
  CHECK(list(scales(Kind::mean_abs_head)) == std::vector<double>{3.5, 6});
  for (const Kind kind : {Kind::max_heads, Kind::mean_abs_heads}) {
    CHECK(scales(kind).sizes() == at::IntArrayRef({1, 1, 1}));
    CHECK(scale_of(kind).shared());
  }
  CHECK(list(scales(Kind::max_heads)) == std::vector<double>{12});
  CHECK(list(scales(Kind::mean_abs_heads)) == std::vector<double>{4.75});
  CHECK_FALSE(scales(Kind::none).defined());
}

TEST_CASE("D51 with one head ten times as large the scopes feed the codec differently",
          "[transform]") {
  at::Tensor x = plain::gaussian({1, 2, 32, 16}, 60);
  x.select(1, 0).mul_(10);
  const auto entering = [&](Kind kind, int64_t head) {
    const Transform transform({}, {}, scale_of(kind));
    const at::Tensor scales = transform.scales(x);
    return transform.forward(x[0][head], head, scales[0][scales.size(1) == 1 ? 0 : head]);
  };
  // Each head by itself has norm 1; over both, head 1 keeps its tenth.
  CHECK(entering(Kind::l2_head, 1).norm(2, -1).sub(1).abs().max().item<double>() < 1e-6);
  CHECK(entering(Kind::l2_heads, 1).norm(2, -1).max().item<double>() < 0.3);
  CHECK(entering(Kind::l2_heads, 0).norm(2, -1).min().item<double>() > 0.95);
}

TEST_CASE("the transform by hand: centre, rotation, scale, and back", "[transform]") {
  // x − c = (2, 2); times [[1, −1], [1, 1]]/√2 gives (2√2, 0); L2 norm 2√2.
  const double half = std::sqrt(0.5);
  const at::Tensor rotation = at::tensor({half, -half, half, half}, at::kDouble).reshape({1, 2, 2});
  const at::Tensor center = at::tensor({1.f, -2.f}).reshape({1, 2});
  const at::Tensor x = at::tensor({3.f, 0.f}).reshape({1, 1, 1, 2});
  const Transform transform(center, rotation, scale_of(Kind::l2_head));
  const at::Tensor scales = transform.scales(x);
  CHECK(scales.item<double>() == static_cast<double>(static_cast<float>(2 * std::sqrt(2.0))));
  const at::Tensor y = transform.forward(x[0][0], 0, scales[0][0]);
  CHECK(y.scalar_type() == at::kFloat);
  CHECK(y[0][0].item<double>() == Approx(1.0).epsilon(1e-7));
  CHECK(y[0][1].item<double>() == Approx(0.0).margin(1e-7));
  CHECK(at::allclose(transform.backward(y, 0, scales[0][0]), x[0][0].to(at::kDouble), 0, 1e-6));
}

TEST_CASE("each KV head has its own centre and rotation", "[transform]") {
  const at::Tensor swap = at::tensor({0.0, 1.0, 1.0, 0.0}, at::kDouble).reshape({2, 2});
  const at::Tensor rotation = at::stack({at::eye(2, at::kDouble), swap});
  const at::Tensor center = at::tensor({0.f, 0.f, 10.f, 20.f}).reshape({2, 2});
  const Transform transform(center, rotation, {});
  const at::Tensor x = at::tensor({11.f, 22.f}).reshape({1, 2});
  CHECK(at::equal(transform.forward(x, 0, {}), x));
  CHECK(at::equal(transform.forward(x, 1, {}), at::tensor({2.f, 1.f}).reshape({1, 2})));
  CHECK(at::equal(transform.backward(at::tensor({2.f, 1.f}).reshape({1, 2}), 1, {}),
                  x.to(at::kDouble)));
  // One matrix serves all heads.
  const Transform shared({}, swap.unsqueeze(0), {});
  CHECK(at::equal(shared.rotation_of(1), swap));
}

TEST_CASE("rotating and L2 scaling commute; with the largest entry as scale they do not",
          "[transform]") {
  const at::Tensor x = plain::gaussian({2, 3, 64, 32}, 61);
  const at::Tensor rotation = transform::hadamard(32).unsqueeze(0);
  const auto entering = [&](Kind kind, bool rotate_first) {
    const Transform transform({}, rotation, scale_of(kind, Params::fp32, rotate_first));
    const at::Tensor scales = transform.scales(x);
    std::vector<at::Tensor> heads;
    for (int64_t head = 0; head < 3; ++head) {
      heads.push_back(
          transform.forward(x[1][head], head, scales[1][scales.size(1) == 1 ? 0 : head]));
    }
    return at::stack(heads);
  };
  for (const Kind kind : {Kind::l2_head, Kind::l2_heads}) {
    CHECK(at::allclose(entering(kind, true), entering(kind, false), 1e-6, 1e-7));
  }
  for (const Kind kind : {Kind::max_head, Kind::mean_abs_head}) {
    CHECK_FALSE(at::allclose(entering(kind, true), entering(kind, false), 1e-2, 1e-2));
  }
  // scale_rotate takes the scale from the centred tensor: its largest entry, not that of the
  // rotated one.
  const Transform scale_first({}, rotation, scale_of(Kind::max_head, Params::fp32, false));
  CHECK(at::equal(scale_first.scales(x), x.abs().amax(-1).to(at::kDouble)));
}

TEST_CASE("with an L2 norm both orders give the codec the same codes, away from ties",
          "[transform]") {
  const auto kind = GENERATE(Kind::l2_head, Kind::l2_heads);
  const at::Tensor x = plain::gaussian({1, 3, 64, 32}, 67);
  const auto codec =
      quant::make_codec(plain::uniform({{"axis", "channel"}, {"group", 32}, {"bits", 8}}), 32);
  const auto codes = [&](bool rotate_first) {
    const Transform transform({}, transform::hadamard(32).unsqueeze(0),
                              scale_of(kind, Params::fp16, rotate_first));
    const at::Tensor scales = transform.scales(x);
    std::vector<at::Tensor> heads;
    for (int64_t head = 0; head < 3; ++head) {
      heads.push_back(
          transform.forward(x[0][head], head, scales[0][scales.size(1) == 1 ? 0 : head]));
    }
    return codec->encode(at::stack(heads), {}).codes.to(at::kInt);
  };
  // Of 6,144 codes of 8 bits, those within some 1e-5 of half a step may fall to the other side.
  const at::Tensor apart = (codes(true) - codes(false)).abs();
  CHECK(apart.max().item<int>() <= 1);
  CHECK(apart.sum().item<int>() <= 3);
}

TEST_CASE("rsqrt and sqrt-and-divide feed the codec alike: they differ by roundings alone",
          "[transform]") {
  const auto kind = GENERATE(Kind::l2_head, Kind::l2_heads, Kind::max_head, Kind::mean_abs_head);
  const at::Tensor x = plain::gaussian({1, 3, 64, 32}, 68);
  const auto entering = [&](Params params, bool inverse) {
    const Transform transform({}, {}, scale_of(kind, params, true, inverse));
    const at::Tensor scales = transform.scales(x);
    return transform.forward(x[0][1], 1, scales[0][scales.size(1) == 1 ? 0 : 1]);
  };
  CHECK(at::allclose(entering(Params::fp32, false), entering(Params::fp32, true), 0x1p-22, 0.0));
  // A stored n and a stored 1/n are each off by half a unit: 2^-11 in fp16, 2^-8 in bf16.
  CHECK(at::allclose(entering(Params::fp16, false), entering(Params::fp16, true), 0x1.1p-10, 0.0));
  CHECK(at::allclose(entering(Params::bf16, false), entering(Params::bf16, true), 0x1.1p-7, 0.0));
  CHECK_FALSE(
      at::allclose(entering(Params::bf16, false), entering(Params::bf16, true), 0x1p-20, 0.0));
}

TEST_CASE("norm_op rsqrt stores 1/n, multiplies on the way in and divides on the way out",
          "[transform]") {
  // 1/3 in fp16 is 0.333251953125.
  constexpr double third = 0.333251953125;
  CHECK(stored_scale(3.0, Params::fp16, true) == third);
  const Transform transform({}, {}, scale_of(Kind::l2_head, Params::fp16, true, true));
  const at::Tensor scale = at::tensor({third}, at::kDouble);
  const at::Tensor x = at::tensor({3.f, 6.f}).reshape({1, 2});
  const at::Tensor y = transform.forward(x, 0, scale);
  CHECK(at::equal(y, (x * third).to(at::kFloat)));
  CHECK(at::equal(transform.backward(y, 0, scale), x.to(at::kDouble)));
  // sqrt_div stores 3 itself.
  CHECK(stored_scale(3.0, Params::fp16) == 3.0);
}

TEST_CASE("D48 a scale that is or becomes 0 is stored as 1, one beyond its type as the largest",
          "[transform]") {
  CHECK(stored_scale(0.0, Params::fp32) == 1.0);
  CHECK(stored_scale(0.0, Params::fp32, true) == 1.0);
  CHECK(stored_scale(1e-9, Params::fp16) == 1.0);       // rounds to 0
  CHECK(stored_scale(1e9, Params::fp16, true) == 1.0);  // so does its inverse
  CHECK(stored_scale(1e6, Params::fp16) == 65504.0);
  CHECK(stored_scale(1e-6, Params::fp16, true) == 65504.0);
  CHECK(stored_scale(1e6, Params::bf16) == 999424.0);  // 8 significant bits: 244·4096
  CHECK(stored_scale(2.7, Params::fp32) == static_cast<double>(2.7f));
}

TEST_CASE("D48 the norm is summed in wide numbers", "[transform]") {
  // 1,024 elements of 10: the squares sum to 102,400, infinity in fp16.
  const at::Tensor x = at::full({1, 1, 1, 1024}, 10.0, at::kHalf);
  for (const Params params : {Params::fp32, Params::fp16}) {
    CHECK(Transform({}, {}, scale_of(Kind::l2_head, params)).scales(x).item<double>() == 320.0);
  }
  const at::Tensor heads = at::full({1, 8, 1, 128}, 10.0, at::kHalf);
  CHECK(Transform({}, {}, scale_of(Kind::l2_heads, Params::fp16)).scales(heads).item<double>() ==
        320.0);
}

TEST_CASE("D48 tokens of zero, tiny and huge norm share a group without harm", "[transform]") {
  at::Tensor x = plain::gaussian({1, 1, 32, 128}, 62);
  const at::Tensor normal = x.clone();
  const double factors[] = {0.0, 1e-8, 1e-4, 1.0, 3e4};
  for (int64_t t = 0; t < 5; ++t) x[0][0][t].mul_(factors[t]);
  const auto codec = quant::make_codec(
      plain::uniform(
          {{"axis", "channel"}, {"group", 32}, {"grid", "rounded_zero"}, {"params", "fp16"}}),
      128);
  const auto decoded = [&](const at::Tensor& keys) {
    const Transform transform({}, {}, scale_of(Kind::l2_head));
    const at::Tensor scales = transform.scales(keys);
    const at::Tensor y = transform.forward(keys[0][0], 0, scales[0][0]).unsqueeze(0);
    return transform.backward(codec->decode(codec->encode(y, {}))[0], 0, scales[0][0]);
  };
  const auto relative = [&](const at::Tensor& keys) {
    const at::Tensor wide = keys[0][0].to(at::kDouble);
    return (decoded(keys) - wide).square().sum(-1) / wide.square().sum(-1);
  };
  const at::Tensor mixed = decoded(x);
  CHECK(mixed.isfinite().all().item<bool>());
  CHECK(mixed[0].eq(0).all().item<bool>());
  // After scaling all tokens but the zero one are what they are without the factors.
  at::Tensor reference = normal.clone();
  reference[0][0][0].zero_();
  CHECK(
      at::allclose(relative(x).narrow(0, 1, 31), relative(reference).narrow(0, 1, 31), 1e-3, 0.0));
  CHECK(relative(x).narrow(0, 1, 31).max().item<double>() < 0.35);
}

TEST_CASE("D43 every rotation and scale comes back", "[transform]") {
  const auto kind = GENERATE(Kind::none, Kind::l2_heads, Kind::l2_head, Kind::max_head,
                             Kind::mean_abs_head, Kind::max_heads, Kind::mean_abs_heads);
  const auto inverse = GENERATE(false, true);
  const auto rotate_first = GENERATE(false, true);
  const at::Tensor x = plain::gaussian({1, 2, 50, 64}, 63) * 3 + 2;
  const at::Tensor center = plain::gaussian({2, 64}, 64);
  for (const at::Tensor& rotation : {at::Tensor(), transform::hadamard(64).unsqueeze(0),
                                     transform::random_orthogonal(64, 3).unsqueeze(0)}) {
    const Transform transform(center, rotation,
                              scale_of(kind, Params::bf16, rotate_first, inverse));
    const at::Tensor scales = transform.scales(x);
    for (int64_t head = 0; head < 2; ++head) {
      const at::Tensor scale =
          scales.defined() ? scales[0][scales.size(1) == 1 ? 0 : head] : at::Tensor();
      const at::Tensor y = transform.forward(x[0][head], head, scale);
      const at::Tensor back = transform.backward(y, head, scale);
      const at::Tensor wide = x[0][head].to(at::kDouble);
      // One rounding to float32 lies between: each row is off by at most half a unit of its own
      // norm.
      const at::Tensor off = (back - wide).norm(2, -1) / (wide - center[head]).norm(2, -1);
      CHECK(off.max().item<double>() <= 0x1p-24);
    }
  }
}

TEST_CASE("D43 rotations are orthogonal to 1e-12", "[transform]") {
  for (const at::Tensor& r : {transform::hadamard(80), transform::random_orthogonal(80, 0),
                              transform::random_orthogonal(128, 12345)}) {
    const at::Tensor x = plain::gaussian({20, r.size(0)}, 65).to(at::kDouble);
    CHECK((r.matmul(r.t()) - at::eye(r.size(0), at::kDouble)).abs().max().item<double>() <= 1e-12);
    CHECK((x.matmul(r).matmul(r.t()) - x).abs().max().item<double>() <= 1e-12);
  }
}

TEST_CASE("a random rotation is a function of its seed", "[transform]") {
  const at::Tensor first = transform::random_orthogonal(32, 5);
  CHECK(at::equal(first, transform::random_orthogonal(32, 5)));
  CHECK_FALSE(at::allclose(first, transform::random_orthogonal(32, 6), 0.1, 0.1));
  // Haar-distributed: no entry is preferred. The mean of the diagonal over seeds is 0 (deviation
  // 1/32 each).
  double diagonal = 0;
  for (int64_t seed = 0; seed < 50; ++seed) {
    diagonal += transform::random_orthogonal(32, seed).diagonal().mean().item<double>() / 50;
  }
  CHECK(std::abs(diagonal) < 4.0 / 32 / std::sqrt(50.0));
}

TEST_CASE("D39 tokens are rotated alike in one call and in two", "[transform]") {
  const at::Tensor x = plain::gaussian({1, 1, 17, 128}, 66);
  const Transform transform({}, transform::hadamard(128).unsqueeze(0), scale_of(Kind::l2_head));
  const auto codec = quant::make_codec(plain::uniform({{"params", "fp16"}}), 128);
  const auto codes = [&](int64_t begin, int64_t count) {
    const at::Tensor part = x.narrow(2, begin, count);
    const at::Tensor y = transform.forward(part[0][0], 0, transform.scales(part)[0][0]);
    return codec->encode(y.unsqueeze(0), {}).codes[0];
  };
  CHECK(at::equal(codes(0, 17), at::cat({codes(0, 16), codes(16, 1)})));
}
