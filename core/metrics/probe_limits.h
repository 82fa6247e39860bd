#pragma once

#include <ATen/ATen.h>

#include "cache/schedule.h"

namespace kvlab::metrics {

/// Positions of the probes and where each reads the history of a sequence up to, int64 [P].
struct ProbeLimits {
  ProbeLimits(const cache::Schedule& schedule, int64_t sequence, const at::Tensor& probes);

  at::Tensor positions, key, value;
};

}  // namespace kvlab::metrics
