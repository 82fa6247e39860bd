// Token scales of few bits, signs, and stages that mix heads or are no rotation.
#include <cmath>

#include "catch.h"
#include "quant/plain_codec.h"
#include "transform/transform.h"

using namespace kvlab;
using transform::Linear;
using transform::TokenScale;
using transform::Transform;
using Params = TokenScale::Params;

namespace {

std::vector<double> stored(const TokenScale& scale, const std::vector<double>& norms) {
  const at::Tensor result = scale.stored(at::tensor(norms, at::kDouble)).contiguous();
  return {result.const_data_ptr<double>(), result.const_data_ptr<double>() + result.numel()};
}

std::vector<int64_t> bits(const TokenScale& scale, const std::vector<double>& norms) {
  const at::Tensor result = scale.bits(scale.stored(at::tensor(norms, at::kDouble))).contiguous();
  return {result.const_data_ptr<int64_t>(), result.const_data_ptr<int64_t>() + result.numel()};
}

TokenScale scale_of(Params params, bool inverse = false, double threshold = 1.0) {
  TokenScale scale;
  scale.kind = TokenScale::Kind::l2_head;
  scale.params = params;
  scale.inverse = inverse;
  scale.threshold = threshold;
  return scale;
}

}  // namespace

TEST_CASE("token scales of 8 bits by hand", "[token_scale]") {
  // e4m3 has three bits behind the point: 1, 1.125, …; 448 at most; 2^−9 at least.
  CHECK(stored(scale_of(Params::fp8_e4m3), {1.06, 1.07, 17, 1000, 0, 0.0005, 0.002}) ==
        std::vector<double>{1, 1.125, 16, 448, 1, 1, 0.001953125});
  // log2 in steps of 1/16: 2^(17/16) is the code of 2.1 (log2 2.1·16 = 17.13).
  const auto logs = stored(scale_of(Params::int8), {1, 2, 2.1, 1e9, 1e-9, 0});
  CHECK(logs[0] == 1);
  CHECK(logs[1] == 2);
  CHECK(logs[2] == Approx(std::exp2(17.0 / 16)).epsilon(1e-7));
  CHECK(logs[3] == Approx(std::exp2(127.0 / 16)).epsilon(1e-7));
  CHECK(logs[4] == Approx(std::exp2(-127.0 / 16)).epsilon(1e-7));
  CHECK(logs[5] == 1);
  // What is stored is stored as itself.
  for (const Params params : {Params::fp8_e4m3, Params::int8, Params::fp16, Params::adaptive}) {
    const auto once = stored(scale_of(params), {0.31, 3.7, 77, 200});
    CHECK(stored(scale_of(params), once) == once);
  }
  CHECK(bits(scale_of(Params::int8), {0.3, 5}) == std::vector<int64_t>{8, 8});
  CHECK(bits(scale_of(Params::bf16), {0.3, 5}) == std::vector<int64_t>{16, 16});
  CHECK(bits(scale_of(Params::fp32), {0.3, 5}) == std::vector<int64_t>{32, 32});
}

TEST_CASE("adaptive token scales are fine below the threshold and coarse from it on",
          "[token_scale]") {
  const TokenScale scale = scale_of(Params::adaptive, false, 2.0);
  // 1.9 would be 1.875 in e4m3: below 2. 1.97 would be 2: coarse. A selector bit each.
  CHECK(stored(scale, {1.9, 1.97, 2.2, 0.3}) ==
        std::vector<double>{static_cast<double>(c10::Half(1.9f)), 2, 2.25,
                            static_cast<double>(c10::Half(0.3f))});
  CHECK(bits(scale, {1.9, 1.97, 2.2, 0.3}) == std::vector<int64_t>{17, 9, 9, 17});
  // Of inverse norms it is the norm that decides.
  const TokenScale inverse = scale_of(Params::adaptive, true, 2.0);
  CHECK(bits(inverse, {1.5, 8}) == std::vector<int64_t>{17, 9});
  CHECK(stored(inverse, {8})[0] == 0.125);
}

TEST_CASE("a signed Hadamard matrix is orthogonal and its signs come from the seed", "[rotate]") {
  const at::Tensor one = transform::signed_hadamard(32, 1);
  CHECK(at::allclose(one.matmul(one.t()), at::eye(32, at::kDouble), 0, 1e-14));
  CHECK(at::equal(one, transform::signed_hadamard(32, 1)));
  CHECK_FALSE(at::equal(one, transform::signed_hadamard(32, 2)));
  CHECK(at::allclose(one.abs(), at::full({32, 32}, 1 / std::sqrt(32.0), at::kDouble), 0, 1e-15));
  CHECK_FALSE(at::equal(one, transform::hadamard(32)));
  // By hand at d = 2: diag(1, −1)·[1 1; 1 −1]·diag(−1, 1)/√2.
  const at::Tensor hand = transform::signed_hadamard(at::tensor({1, -1}), at::tensor({-1, 1}));
  CHECK(at::allclose(hand * std::sqrt(2.0),
                     at::tensor({-1.0, 1.0, 1.0, 1.0}, at::kDouble).reshape({2, 2}), 0, 1e-15));
}

TEST_CASE("an order over all heads and one matrix over two of them, by hand and back",
          "[transform]") {
  // Two heads of one channel: the order swaps them, the Hadamard matrix takes sum and difference.
  const Linear linear{.order = at::tensor({1, 0}, at::kLong),
                      .matrix = transform::hadamard(2).unsqueeze(0),
                      .inverse = {},
                      .heads = 2};
  const Transform swapped({}, linear, {}, /*kv_heads=*/2);
  REQUIRE(swapped.heads() == 2);
  const at::Tensor x = at::tensor({3.0f, 5.0f}).reshape({2, 1, 1});  // heads, tokens, channels
  const at::Tensor y = swapped.forward(x, 0, {});
  CHECK(y.flatten()[0].item<float>() == Approx(8 / std::sqrt(2.0)));
  CHECK(y.flatten()[1].item<float>() == Approx(2 / std::sqrt(2.0)));

  // Larger, with a centre and scales: four heads, two mixed at a time, all of them ordered.
  const at::Tensor many = plain::gaussian({1, 4, 20, 8}, 3);
  const at::Tensor center = plain::gaussian({4, 8}, 4);
  const auto order = at::arange(32, at::kLong).flip(0);
  for (const bool first : {true, false}) {
    for (const auto kind : {TokenScale::Kind::l2_head, TokenScale::Kind::l2_heads}) {
      TokenScale scale = scale_of(Params::fp16);
      scale.kind = kind;
      scale.rotate_first = first;
      const Transform all(center, {order, transform::hadamard(16).unsqueeze(0), {}, 2}, scale, 4);
      const at::Tensor scales = all.scales(many);
      const at::Tensor forth = all.forward(many[0], 0, scales[0]);
      CHECK(at::allclose(all.backward(forth, 0, scales[0]), many[0].to(at::kDouble), 0, 2e-6));
      CHECK_FALSE(at::allclose(forth, many[0], 0, 0.1));
    }
  }
}

TEST_CASE("a basis that is no rotation goes back through its inverse and has its dual for queries",
          "[transform]") {
  const at::Tensor matrix = (plain::gaussian({2, 6, 6}, 8) + at::eye(6) * 3).to(at::kDouble);
  const at::Tensor inverse = at::linalg_inv(matrix);
  const Transform basis({}, Linear{.order = {}, .matrix = matrix, .inverse = inverse}, {}, 2);
  const at::Tensor k = plain::gaussian({2, 30, 6}, 9);
  const at::Tensor q = plain::gaussian({4, 6}, 10).to(at::kDouble);
  for (int64_t head = 0; head < 2; ++head) {
    const at::Tensor y = basis.forward(k[head], head, {});
    CHECK(at::allclose(basis.backward(y, head, {}), k[head].to(at::kDouble), 0, 1e-5));
    CHECK(at::allclose(q.matmul(basis.query_matrix(head)).matmul(y.to(at::kDouble).t()),
                       q.matmul(k[head].to(at::kDouble).t()), 0, 1e-4));
    CHECK_FALSE(at::allclose(basis.query_matrix(head), basis.rotation_of(head), 0, 0.1));
  }
}

TEST_CASE("gradients of what enters the codec are those of what it decodes to", "[transform]") {
  // backward is affine in y: its derivative is a difference, whatever the stages.
  const at::Tensor center = plain::gaussian({2, 4}, 60);
  const at::Tensor matrix = plain::gaussian({2, 4, 4}, 61).to(at::kDouble) + 3 * at::eye(4);
  const Linear basis{.order = {}, .matrix = matrix, .inverse = at::linalg_inv(matrix)};
  const Linear order{.order = at::tensor({5, 0, 7, 2, 1, 3, 6, 4}, at::kLong),
                     .matrix = transform::random_orthogonal(8, 3).unsqueeze(0),
                     .inverse = {},
                     .heads = 2};
  for (const bool rotate_first : {true, false}) {
    for (const bool inverse : {true, false}) {
      for (const Linear& linear : {basis, order}) {
        TokenScale scale = scale_of(Params::fp32, inverse);
        scale.rotate_first = rotate_first;
        const Transform stages(center, linear, scale, 2);
        const int64_t heads = stages.heads();
        const at::Tensor y = plain::gaussian({heads, 3, 4}, 62);
        const at::Tensor g = plain::gaussian({heads, 3, 4}, 63);  // dL/dx of L = Σ g·x
        const at::Tensor stored = plain::gaussian({heads, 3}, 64).abs().to(at::kDouble) + 0.5;
        const auto loss = [&](const at::Tensor& at_y) {
          return (stages.backward(at_y, 0, stored) * g).sum().item<double>();
        };
        const at::Tensor ours = stages.gradient(g, 0, stored);
        for (int64_t c = 0; c < 4; ++c) {
          at::Tensor moved = y.clone();
          moved[heads - 1][1][c] += 1.0;
          CHECK(ours[heads - 1][1][c].item<double>() ==
                Approx(loss(moved) - loss(y)).epsilon(1e-4).margin(1e-5));
        }
      }
    }
  }
}

TEST_CASE("a Hadamard matrix of each block of channels", "[rotate]") {
  const at::Tensor blocks = transform::block_hadamard(4, 2) * std::sqrt(2.0);
  CHECK(at::allclose(
      blocks,
      at::tensor({1., 1., 0., 0., 1., -1., 0., 0., 0., 0., 1., 1., 0., 0., 1., -1.}, at::kDouble)
          .reshape({4, 4})));
  CHECK(transform::block_hadamard(8, 0).equal(transform::hadamard(8)));
  CHECK(transform::block_hadamard(8, 8).equal(transform::hadamard(8)));
  // Signs are those of the whole matrix.
  const at::Tensor whole = transform::signed_hadamard(16, 3);
  const at::Tensor parts = transform::signed_hadamard(16, 3, 4);
  CHECK(parts.count_nonzero().item<int64_t>() == 16 * 4);
  CHECK(at::allclose(parts.matmul(parts.t()), at::eye(16, at::kDouble), 0, 1e-12));
  CHECK(whole[0][0].sign().equal(parts[0][0].sign()));
}

TEST_CASE("tokens of a block are mixed after the rotation and before the scale", "[transform]") {
  // Blocks of two tokens of one channel: sum and difference over √2, and their norms as scales.
  const Linear linear{.order = {}, .matrix = {}, .inverse = {}, .mixed_tokens = 2};
  const Transform mixing({}, linear, scale_of(Params::fp32), 1);
  const at::Tensor x = at::tensor({3.0f, 5.0f, -1.0f, 7.0f}).reshape({1, 1, 4, 1});
  const at::Tensor scales = mixing.scales(x);
  const at::Tensor expected = at::tensor({8.0, 2.0, 6.0, 8.0}, at::kDouble) / std::sqrt(2.0);
  CHECK(at::allclose(scales.flatten(), expected, 1e-6));
  const at::Tensor y = mixing.forward(x[0][0], 0, scales[0][0]);
  CHECK(at::allclose(y.flatten(), at::tensor({1.0f, -1.0f, 1.0f, -1.0f}), 1e-6));
  CHECK(at::allclose(mixing.backward(y, 0, scales[0][0]).flatten(), x.to(at::kDouble).flatten(), 0,
                     1e-6));
}
