#pragma once

#include <string>

#include "report/grid.h"

namespace kvlab::report {

/// How far a value is off the one that it is compared with, as a share of it.
struct Off {
  double share = 0;
  double low = 0, high = 0;  // 95% interval, paired by passage; NaN where there are too few
};

/// A value of a grid beside that of Layout::against: the same line's in the column of these keys,
/// or the same column's in the line of these keys where there is no such column. NaN for that one
/// itself and where one of the two is no number.
Off off(const Grid& grid, size_t line, size_t column);

/// "+4.3% ±0.6%", "not distinguishable", "equal"; empty where the share is NaN.
std::string off_text(const Off& off);

/// Throws Error where Layout::against names no column or row.
void check_against(const Grid& grid);

}  // namespace kvlab::report
