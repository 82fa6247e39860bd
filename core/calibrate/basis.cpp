#include "calibrate/basis.h"

#include <fmt/format.h>

#include <cmath>

#include "base/error.h"
#include "calibrate/covariance.h"

namespace kvlab::calibrate {
namespace {

at::Tensor symmetric(const at::Tensor& x) { return (x + x.transpose(-1, -2)) / 2; }

/// diag(values)·matrix and matrix·diag(values), batched.
at::Tensor rows_times(const at::Tensor& values, const at::Tensor& matrix) {
  return values.unsqueeze(-1) * matrix;
}
at::Tensor columns_times(const at::Tensor& matrix, const at::Tensor& values) {
  return matrix * values.unsqueeze(-2);
}

at::Tensor trace_of(const at::Tensor& x) { return x.diagonal(0, -2, -1).sum(-1); }

/// x + share·tr(x)/d·I.
at::Tensor damped(const at::Tensor& x, double share) {
  const int64_t d = x.size(-1);
  const at::Tensor more = trace_of(x) * (share / static_cast<double>(d));
  return symmetric(x) + more.unsqueeze(-1).unsqueeze(-1) * at::eye(d, at::kDouble);
}

}  // namespace

Basis query_pca(const at::Tensor& query, const at::Tensor& covariance) {
  // Directions that no query looks at still need a coordinate.
  constexpr double kLeast = 1e-9;
  const auto [values, vectors] = at::linalg_eigh(damped(query, kLeast));
  const at::Tensor root = values.clamp_min(0).sqrt();
  const at::Tensor half = columns_times(vectors, root).matmul(vectors.transpose(-1, -2));
  const at::Tensor back =
      columns_times(vectors, root.reciprocal()).matmul(vectors.transpose(-1, -2));
  const at::Tensor directions = eigenvectors(half.matmul(covariance).matmul(half));
  return {half.matmul(directions).contiguous(),
          directions.transpose(-1, -2).matmul(back).contiguous()};
}

Basis balanced_basis(const at::Tensor& hessian, const at::Tensor& moment, double damping) {
  for (const auto& [what, x] :
       {std::pair{"the loss (queries, or w_o)", &hessian}, std::pair{"the data", &moment}}) {
    if (trace_of(*x).gt(0).all().item<bool>()) continue;
    throw Error(
        fmt::format("basis: balanced: {} of some KV head is zero in the calibration set", what));
  }
  const at::Tensor lower = at::linalg_cholesky(damped(hessian, damping));
  const at::Tensor middle = lower.transpose(-1, -2).matmul(damped(moment, damping)).matmul(lower);
  const auto [values, ignored] = at::linalg_eigh(symmetric(middle));
  const at::Tensor vectors = eigenvectors(middle);
  const at::Tensor quarter = values.sqrt().sqrt();
  const at::Tensor c =
      (trace_of(moment) / values.sqrt().sum(-1)).sqrt().unsqueeze(-1) * std::sqrt(1.0 + damping);
  const at::Tensor matrix = columns_times(lower.matmul(vectors), c / quarter);
  const at::Tensor solved =
      at::linalg_solve_triangular(lower.transpose(-1, -2), vectors, /*upper=*/true);  // L^−ᵀ·U
  return {matrix.contiguous(), rows_times(quarter / c, solved.transpose(-1, -2)).contiguous()};
}

}  // namespace kvlab::calibrate
