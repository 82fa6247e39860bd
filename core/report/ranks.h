#pragma once

#include <vector>

#include "report/grid.h"
#include "report/sheet.h"

namespace kvlab::report {

/// Best and second of each column.
struct Ranks {
  std::vector<std::vector<Rank>> by_column;  // for each column of the grid, one a line
  bool were_tested = false;  // some two lines were told apart by their passages, not by means alone
};

/// Ranks of the lines. Lines that quantize nothing and means over fewer cells do not compete.
/// Lines that cannot be told from the best share its rank: where there are enough passages, those
/// whose paired difference has an interval that covers zero; else those with an equal mean. The
/// second is the best of the rest, with its ties.
Ranks rank_lines(const Grid& grid);

}  // namespace kvlab::report
