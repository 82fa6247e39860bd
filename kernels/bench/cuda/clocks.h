#pragma once

#include <optional>
#include <string>

namespace kvlab::bench {

/// What the driver's management library says of the GPU at this moment.
struct Clocks {
  int sm_mhz = 0;
  std::string throttled;  // why it is slower than it could be; empty: it is not
};

/// Nothing where there is no such library.
std::optional<Clocks> clocks();

}  // namespace kvlab::bench
