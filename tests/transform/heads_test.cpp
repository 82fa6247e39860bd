// Stages that mix the channels of several heads.
#include "catch.h"
#include "transform/head_hadamard.h"
#include "transform/reorder.h"

using namespace kvlab::transform;

namespace {

/// Two heads of two channels, two tokens: the channels' sums are 5, −1, 3, 0.
at::Tensor two_heads() {
  return at::tensor({2.0, -4.0, 3.0, 3.0, 1.0, 0.5, 2.0, -0.5}, at::kDouble).reshape({1, 2, 2, 2});
}

}  // namespace

TEST_CASE("channels are ordered by their sums over all heads") {
  const at::Tensor x = two_heads();
  const at::Tensor order = channel_order(x);
  CHECK(order.equal(at::tensor({1, 3, 2, 0}, at::kLong)));
  const at::Tensor y = reorder(x, order);
  CHECK(y.equal(
      at::tensor({-4.0, 0.5, 3.0, -0.5, 1.0, 2.0, 2.0, 3.0}, at::kDouble).reshape({1, 2, 2, 2})));
  CHECK(undo_reorder(y, order).equal(x));
}

TEST_CASE("one Hadamard matrix covers the channels of several heads") {
  CHECK(heads_together(8, 4) == 4);
  CHECK(heads_together(6, 4) == 2);
  CHECK(heads_together(3, 4) == 1);
  CHECK(heads_together(4, 3) == 2);
  const at::Tensor x = two_heads();
  const at::Tensor y = rotate_heads(x, 2);
  // Token 0 is the row (2, −4, 1, 0.5): its first coordinate is half the sum, its last half of
  // 2 + 4 − 1 + 0.5.
  CHECK(y[0][0][0][0].item<double>() == Approx(-0.25));
  CHECK(y[0][1][0][1].item<double>() == Approx(2.75));
  CHECK(at::allclose(undo_rotate_heads(y, 2), x));
  CHECK_FALSE(at::allclose(y, rotate_heads(x, 1)));
}
