#pragma once

#include <string>

#include "report/grid.h"
#include "report/notes.h"

namespace kvlab::report {

/// Aligned columns for a terminal. `emphasis` sets the best value of a column bold and the second
/// underlined with escape codes.
std::string render_text(const Grid& grid, const Notes& notes, bool emphasis);

/// A GitHub-flavoured table. `emphasis` uses ** and <u>.
std::string render_markdown(const Grid& grid, const Notes& notes, bool emphasis);

/// RFC 4180 with \r\n line ends, full precision, an empty field where there is no value.
std::string render_csv(const Grid& grid);

}  // namespace kvlab::report
