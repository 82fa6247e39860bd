#pragma once

#include "calibrate/prepare.h"
#include "config/plan.h"
#include "run/samples.h"
#include "store/results.h"

namespace kvlab::run {

/// Computes one cell. Whatever goes wrong becomes its status and reason; only a shortage of disk
/// for calibrations and the like is thrown.
store::CellResult compute(const config::Cell& cell, Samples& samples,
                          calibrate::CalibrationStore& calibrations,
                          const calibrate::Progress& progress);

/// The result of a cell that is not run: unsupported, excluded or interrupted, with its reason.
store::CellResult not_run(const config::Cell& cell, const std::string& status,
                          const std::string& reason);

/// Now, ISO 8601 in UTC.
std::string timestamp();

}  // namespace kvlab::run
