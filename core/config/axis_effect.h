#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "config/experiment.h"

namespace kvlab::config {

/// The axes that change nothing, by their places in axis_names(): for no method at any of the head
/// sizes, nor for any synthetic dataset, does another value make another configuration. (A part
/// that declares "no effect by algebra" still makes another configuration.) An axis of a single
/// value is idle where nothing uses its key.
std::vector<size_t> idle_axes(const Experiment& experiment, const std::set<int64_t>& head_dims);

}  // namespace kvlab::config
