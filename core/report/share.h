#pragma once

#include <string>
#include <utility>

#include "store/results.h"

namespace kvlab::report {

/// Trials behind a cell's share of successes (needle_exact), each a block of its own. 0 for every
/// other metric, and where blocks were not read.
double trials_of(const store::CellResult& cell, const std::string& metric);

/// Wilson's 95% score interval of a share of so many independent trials (JASA 22, 1927), which is
/// no point where all or none succeed.
std::pair<double, double> wilson(double share, double trials);

}  // namespace kvlab::report
