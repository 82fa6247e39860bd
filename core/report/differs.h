#pragma once

#include <string>
#include <vector>

#include "report/layout.h"
#include "store/results.h"

namespace kvlab::report {

/// Settings of codec and window in which the labels of a table differ and which are not among its
/// rows and columns, one line each: "grid: float_zero (kivi); rounded_zero (the other 5)".
/// Methods with unequal bits, groups, grids, clips or windows are not compared alone.
std::vector<std::string> differing_settings(const store::Results& results, const Layout& layout);

}  // namespace kvlab::report
