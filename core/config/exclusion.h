#pragma once

#include <optional>
#include <string>

#include "config/experiment.h"
#include "config/sweep.h"

namespace kvlab::config {

/// Where a row stands: places in the experiment's lists, the layer and the seed themselves.
struct Place {
  size_t dataset = 0;
  int64_t layer = 0;
  size_t method = 0;
  size_t point = 0;
  int64_t seed = 0;
};

/// The first exclusion that covers the row, nothing where none does. An exclusion
/// covers a row that has every value its `when` names, or one of them where it names a list.
std::optional<size_t> exclusion_of(const Experiment& experiment, const Place& place,
                                   const Point& point);

}  // namespace kvlab::config
