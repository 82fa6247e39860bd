#pragma once

#include <vector>

#include "config/plan.h"

/// Last touches to a plan whose rows and cells are all there.
namespace kvlab::config {

/// Rows of different methods or datasets that share a cell say so.
void warn_of_shared_cells(Plan& plan);

/// Orders cells by dataset, layer, swept parameters of the data and seed, so that a sample is
/// loaded once and dropped early. `dataset_of_cell` is each cell's place in the experiment's list
/// of datasets.
void put_samples_together(Plan& plan, const std::vector<size_t>& dataset_of_cell);

}  // namespace kvlab::config
