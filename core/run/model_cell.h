#pragma once

#include "run/cell.h"

namespace kvlab::run {

/// Runs a whole model with the cell's method as its cache and fills in what it measures.
void measure_model(const config::Cell& cell, Inputs& inputs, const calibrate::Progress& progress,
                   store::CellResult& result);

}  // namespace kvlab::run
