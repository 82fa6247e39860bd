#pragma once

#include <ATen/ATen.h>

#include "data/sample.h"

namespace kvlab::calibrate {

// Covariances of contract section 4.4, not centred.

/// C_Q,h = Q_hᵀQ_h/rows over the query heads of each KV head: float64 [Hkv, d, d].
/// Keys use it in both forms (the mean over query heads is the same number).
at::Tensor query_covariance(const data::Sample& sample);

/// C_S,h as OSCAR's code makes it: V_hᵀ·diag(w)·V_h/n with w_t ∝ k_tᵀC_Q,h k_t and Σw = n, float64
/// [Hkv, d, d]. `query` is C_Q.
at::Tensor proxy_covariance(const data::Sample& sample, const at::Tensor& query);

/// C_S,h as its paper defines it: the mean over query heads of OᵀO/N, O the causal attention output
/// of the captured queries, float64 [Hkv, d, d].
at::Tensor output_covariance(const data::Sample& sample);

/// XᵀX/n of each head's captured keys or values x [B, H, n, d]: float64 [H, d, d].
at::Tensor own_covariance(const at::Tensor& x);

/// Eigenvectors as columns, ascending in eigenvalue, each column's entry of largest magnitude
/// positive.
at::Tensor eigenvectors(const at::Tensor& covariance);

/// A product of u (the eigenvectors, [..., d, d]), h (the Hadamard matrix) and p (which puts column
/// d−1−i at bitrev(i), d a power of two) in the order of `factors`: "uhp" is OSCAR's own, its code
/// has others. Without u it is [d, d].
at::Tensor compose_rotation(const at::Tensor& u, const std::string& factors);

/// compose_rotation of the eigenvectors of each matrix of covariance [n, d, d].
at::Tensor covariance_rotation(const at::Tensor& covariance, const std::string& factors);

}  // namespace kvlab::calibrate
