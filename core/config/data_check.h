#pragma once

#include <vector>

#include "base/error.h"
#include "config/plan.h"
#include "config/sweep.h"

namespace kvlab::config {

/// What is wrong with the files behind the experiment's datasets and calibration sets at these
/// points of the sweep, passages too short for what is measured, and layers that a dataset's file
/// does not hold: for each place of the experiment file the first mistake. Files that are not there
/// at all have been told already.
std::vector<Problem> data_problems(const Experiment& experiment,
                                   const std::vector<std::string>& axes,
                                   const std::vector<Point>& points, const Describe& describe);

}  // namespace kvlab::config
