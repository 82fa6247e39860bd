#pragma once

#include <limits>

namespace kvlab {

/// What stands where there is no number.
inline constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

}  // namespace kvlab
