#pragma once

#include "report/inspect.h"

namespace kvlab::report {

/// Reads all of an inspected file and adds the problems found: NaN and infinite values, rotations
/// that are not orthogonal, checksums that differ, rows without a cell, an unknown schema.
void verify(Inspection* inspection);

}  // namespace kvlab::report
