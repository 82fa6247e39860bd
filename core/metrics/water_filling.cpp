#include "metrics/water_filling.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>
#include <vector>

namespace kvlab::metrics {

double reverse_water_filling(const at::Tensor& variances, double distortion) {
  const at::Tensor all = variances.to(at::kDouble).contiguous();
  std::vector<double> sorted(all.const_data_ptr<double>(),
                             all.const_data_ptr<double>() + all.numel());
  std::sort(sorted.begin(), sorted.end());
  if (distortion <= 0) return std::numeric_limits<double>::infinity();
  double below = 0;  // the components that lie under the water give all their variance
  for (size_t i = 0; i < sorted.size(); ++i) {
    const double level = (distortion - below) / static_cast<double>(sorted.size() - i);
    if (level <= sorted[i]) {
      double bits = 0;
      for (size_t j = i; j < sorted.size(); ++j) bits += 0.5 * std::log2(sorted[j] / level);
      return bits / static_cast<double>(sorted.size());
    }
    below += std::max(sorted[i], 0.0);
  }
  return 0;
}

at::Tensor seen_variances(const at::Tensor& x, const at::Tensor& c) {
  const at::Tensor rows = x.to(at::kDouble);
  const at::Tensor centred = rows - rows.mean(0, true);
  const auto [values, vectors] = at::linalg_eigh(c);
  const at::Tensor root = vectors * values.clamp_min(0).sqrt();  // root·rootᵀ = c
  const at::Tensor seen = centred.matmul(root);
  return at::linalg_eigvalsh(seen.t().matmul(seen) / static_cast<double>(rows.size(0)));
}

}  // namespace kvlab::metrics
