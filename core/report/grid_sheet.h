#pragma once

#include "report/grid.h"
#include "report/notes.h"
#include "report/sheet.h"

namespace kvlab::report {

/// The grid as texts: means, with half their interval behind ± where there is one.
Sheet sheet_of(const Grid& grid, const Notes& notes);

}  // namespace kvlab::report
