#pragma once

#include <ATen/ATen.h>

#include "cache/windows.h"

namespace kvlab::metrics {

/// Positions of the probes and where each reads the history up to, int64 [P].
struct ProbeLimits {
  ProbeLimits(const cache::Windows& windows, const at::Tensor& probes);

  at::Tensor positions, key, value;
};

}  // namespace kvlab::metrics
