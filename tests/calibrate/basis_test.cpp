#include "calibrate/basis.h"

#include "catch.h"
#include "quant/plain_codec.h"

using namespace kvlab;
using calibrate::Basis;

namespace {

at::Tensor second_moment(const at::Tensor& x) {
  return x.transpose(-1, -2).matmul(x) / static_cast<double>(x.size(-2));
}

/// Rows whose channels differ in size and go together, [2, n, 8].
at::Tensor rows(uint64_t seed) {
  const at::Tensor mix = plain::gaussian({2, 8, 8}, seed + 100).to(at::kDouble);
  return plain::gaussian({2, 500, 8}, seed).to(at::kDouble).matmul(mix);
}

bool is_diagonal(const at::Tensor& x, double tolerance) {
  const at::Tensor off = x - at::diag_embed(x.diagonal(0, -2, -1));
  return off.abs().max().item<double>() <= tolerance * x.abs().max().item<double>();
}

}  // namespace

TEST_CASE("in the query basis the error of the keys is that of the logits", "[basis]") {
  const at::Tensor q = rows(1), k = rows(2);
  const at::Tensor covariance = second_moment(k - k.mean(1, true));
  const Basis basis = calibrate::query_pca(second_moment(q), covariance);
  CHECK(at::allclose(basis.matrix.matmul(basis.inverse), at::eye(8, at::kDouble).expand({2, 8, 8}),
                     0, 1e-8));
  const at::Tensor error = plain::gaussian({2, 30, 8}, 3).to(at::kDouble);
  const at::Tensor of_logits = q.matmul(error.transpose(1, 2)).square().mean(1);
  const at::Tensor of_keys = error.matmul(basis.matrix).square().sum(-1);
  CHECK(at::allclose(of_keys, of_logits, 1e-6, 0));
  // Its coordinates are uncorrelated, in ascending order.
  const at::Tensor spread = basis.matrix.transpose(1, 2).matmul(covariance).matmul(basis.matrix);
  CHECK(is_diagonal(spread, 1e-10));
  const at::Tensor sizes = spread.diagonal(0, -2, -1);
  CHECK((sizes.diff() > 0).all().item<bool>());
}

TEST_CASE("in the balanced basis data and loss are equally large", "[basis]") {
  const at::Tensor hessian = second_moment(rows(5)), moment = second_moment(rows(6));
  const double damping = GENERATE(0.0, 0.01);
  const Basis basis = calibrate::balanced_basis(hessian, moment, damping);
  CHECK(at::allclose(basis.matrix.matmul(basis.inverse), at::eye(8, at::kDouble).expand({2, 8, 8}),
                     0, 1e-9));
  const auto damped = [&](const at::Tensor& x) {
    const at::Tensor mean = x.diagonal(0, -2, -1).mean(-1, true).unsqueeze(-1);
    return x + mean * damping * at::eye(8, at::kDouble);
  };
  const at::Tensor data = basis.matrix.transpose(1, 2).matmul(damped(moment)).matmul(basis.matrix);
  const at::Tensor loss =
      basis.inverse.matmul(damped(hessian)).matmul(basis.inverse.transpose(1, 2));
  CHECK(is_diagonal(data, 1e-10));
  CHECK(is_diagonal(loss, 1e-10));
  for (int64_t head = 0; head < 2; ++head) {
    const at::Tensor share = data[head].diagonal() / loss[head].diagonal();
    CHECK(at::allclose(share, share[0].expand({8}), 1e-8, 0));
    // c makes the coordinates as large as the data was: tr of the data is kept.
    CHECK(data[head].trace().item<double>() ==
          Approx(damped(moment)[head].trace().item<double>()).epsilon(1e-9));
  }
}
