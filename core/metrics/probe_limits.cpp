#include "metrics/probe_limits.h"

#include <vector>

namespace kvlab::metrics {

ProbeLimits::ProbeLimits(const cache::Schedule& schedule, int64_t sequence,
                         const at::Tensor& probes)
    : positions(probes) {
  using Side = cache::Schedule::Side;
  std::vector<int64_t> keys, values;
  for (int64_t i = 0; i < probes.size(0); ++i) {
    const auto p = probes[i].item<int64_t>();
    keys.push_back(schedule.boundary(Side::key, sequence, p));
    values.push_back(schedule.boundary(Side::value, sequence, p));
  }
  key = at::tensor(keys, at::kLong);
  value = at::tensor(values, at::kLong);
}

}  // namespace kvlab::metrics
