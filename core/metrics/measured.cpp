#include "metrics/measured.h"

#include "metrics_catalog/catalog.h"

namespace kvlab::metrics {

double scalar_of(const std::string& metric, const at::Tensor& array) {
  const MetricInfo* info = find_metric(metric);
  const at::Tensor wide = array.to(at::kDouble);
  return (info && info->is_count ? wide.sum() : wide.mean()).item<double>();
}

}  // namespace kvlab::metrics
