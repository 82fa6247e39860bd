#include "report/share.h"

#include <algorithm>
#include <cmath>

#include "metrics_catalog/catalog.h"

namespace kvlab::report {

double trials_of(const store::CellResult& cell, const std::string& metric) {
  const metrics::MetricInfo* info = metrics::find_metric(metric);
  const auto found = cell.blocks.find(metric);
  if (info == nullptr || !info->is_share_of_trials || found == cell.blocks.end()) return 0;
  return static_cast<double>(found->second.shape[1]);  // [1, trials, 2]
}

std::pair<double, double> wilson(double share, double trials) {
  constexpr double z = 1.959963984540054;  // 97.5% point of the normal distribution
  const double middle = share + z * z / (2 * trials);
  const double half = z * std::sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials));
  const double scale = 1 + z * z / trials;
  return {std::clamp((middle - half) / scale, 0.0, share),
          std::clamp((middle + half) / scale, share, 1.0)};
}

}  // namespace kvlab::report
