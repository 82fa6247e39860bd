#pragma once

#include <ATen/ATen.h>

namespace kvlab::metrics {

/// Bits an element that an ideal code takes for normal vectors whose components have these
/// variances (float64 [d], of uncorrelated components) at a mean squared error of `distortion` a
/// vector, by reverse water-filling (Cover and Thomas, Elements of Information Theory, section
/// 10.3.3). 0 where the distortion is no less than all variance, inf where it is 0.
double reverse_water_filling(const at::Tensor& variances, double distortion);

/// Variances of x as queries see them: eigenvalues of C^½·Cov(x)·C^½, float64 [d], so that tr(C·E)
/// of an error's second moment E is their distortion. x: [n, d]; c: float64 [d, d], symmetric and
/// not negative.
at::Tensor seen_variances(const at::Tensor& x, const at::Tensor& c);

}  // namespace kvlab::metrics
