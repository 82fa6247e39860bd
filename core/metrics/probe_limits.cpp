#include "metrics/probe_limits.h"

#include <vector>

namespace kvlab::metrics {

ProbeLimits::ProbeLimits(const cache::Windows& windows, const at::Tensor& probes)
    : positions(probes) {
  using Side = cache::Windows::Side;
  std::vector<int64_t> keys, values;
  for (int64_t i = 0; i < probes.size(0); ++i) {
    const auto p = probes[i].item<int64_t>();
    keys.push_back(windows.boundary(Side::key, p));
    values.push_back(windows.boundary(Side::value, p));
  }
  key = at::tensor(keys, at::kLong);
  value = at::tensor(values, at::kLong);
}

}  // namespace kvlab::metrics
