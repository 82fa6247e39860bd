#pragma once

#include <string>

#include "base/h5.h"
#include "store/results.h"

namespace kvlab::store {

/// How much of a cell is read: `light` leaves out the arrays (metrics by head, blocks, samples,
/// tokens, rotation, center, learning), `blocks` all but what intervals resample.
enum class Detail { light, blocks, full };

/// "/cells/<id>".
std::string cell_group(const std::string& id);

/// Writes the group of one cell (contract section 6) and seals it with a checksum.
void write_cell(h5::File& file, const CellResult& cell);

/// Reads the group of one cell. Throws Error naming what is missing.
CellResult read_cell(const h5::File& file, const std::string& id, Detail detail);

}  // namespace kvlab::store
