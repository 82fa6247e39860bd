#pragma once

#include "calibrate/prepare.h"
#include "config/plan.h"
#include "run/models.h"
#include "run/samples.h"
#include "store/results.h"

namespace kvlab::run {

/// What the cells of a run share.
struct Inputs {
  explicit Inputs(const std::filesystem::path& calibration_folder)
      : calibrations(calibration_folder) {}

  /// Announces one later use of what the cell is computed on, and ends one.
  void expect(const config::Cell& cell) {
    cell.dataset.model ? models.expect(cell) : samples.expect(cell);
  }
  void release(const config::Cell& cell) {
    cell.dataset.model ? models.release(cell) : samples.release(cell);
  }

  Samples samples;
  Models models;
  calibrate::CalibrationStore calibrations;
};

/// Computes one cell. Whatever goes wrong becomes its status and reason; only a shortage of disk
/// for calibrations and the like is thrown.
store::CellResult compute(const config::Cell& cell, Inputs& inputs,
                          const calibrate::Progress& progress);

/// The result of a cell that is not run: unsupported, excluded or interrupted, with its reason.
store::CellResult not_run(const config::Cell& cell, const std::string& status,
                          const std::string& reason);

/// float64, as stored.
store::Array array_of(const at::Tensor& tensor);

/// Where a cell's recipe on a layer is calibrated; nothing where it needs nothing. The cell and the
/// samples must outlive it.
std::optional<calibrate::CalibrationSample> calibration_of(const config::Cell& cell, int64_t layer,
                                                           Samples& samples);

/// Now, ISO 8601 in UTC.
std::string timestamp();

}  // namespace kvlab::run
