#pragma once

#include <string>
#include <vector>

#include "report/grid.h"

namespace kvlab::report {

/// What a reader must know beside the numbers, below a text or markdown table.
struct Notes {
  std::vector<std::string> marks;  // one for each line of the grid: " [1,2]", or nothing
  std::vector<std::string> lines;
};

constexpr const char* kPartialMark = " †";

/// Whether all of a line's means are over less than those of other lines.
bool is_partial(const Line& line);

Notes make_notes(const store::Results& results, const Grid& grid);

/// A sentence for each state and reason of cells that are not complete: "2 cells failed: out of
/// memory (kivi)".
std::vector<std::string> incomplete_cells(const store::Results& results);

}  // namespace kvlab::report
