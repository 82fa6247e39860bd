#pragma once

#include "config/plan.h"
#include "run/runner.h"

namespace kvlab::run {

/// What a run is likely to cost, for --dry-run.
struct Estimate {
  double seconds = 0;  // wall time
  int64_t bytes = 0;   // of the results file
};

/// A guess from the sizes of these cells, with rates measured on two cores of a 2023 server
/// processor.
Estimate estimate(const config::Plan& plan, const std::vector<size_t>& cells,
                  const Options& options);

}  // namespace kvlab::run
