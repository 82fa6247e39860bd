#pragma once

#include <ATen/ATen.h>

namespace kvlab::calibrate {

/// A basis that need not be orthogonal: coordinates y = x·matrix, x = y·inverse; a query that meets
/// keys in these coordinates is q·inverseᵀ. float64 [H, d, d].
struct Basis {
  at::Tensor matrix, inverse;
};

/// F = Σ_Q^½·V, V of the eigenvectors of Σ_Q^½·C·Σ_Q^½: the squared error of y is, on average over
/// queries, the squared error of the logits (arXiv:2608.04074). query [H, d, d]: second moments of
/// the queries; covariance [H, d, d]: of the keys. Columns ascend in eigenvalue.
Basis query_pca(const at::Tensor& query, const at::Tensor& covariance);

/// Tᵀ of T = c·Λ^−¼·Uᵀ·Lᵀ, L·Lᵀ = Hess + γ·tr(Hess)/d·I, U·Λ·Uᵀ = Lᵀ·(M + γ·tr(M)/d·I)·L,
/// c = √(tr M/tr Λ^½)·√(1 + γ), as WUSH-KV describes it: both T·M·Tᵀ and the Hessian of y are
/// multiples of Λ^½. hessian, moment: [H, d, d]; damping: γ.
Basis balanced_basis(const at::Tensor& hessian, const at::Tensor& moment, double damping);

}  // namespace kvlab::calibrate
