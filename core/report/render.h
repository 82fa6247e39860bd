#pragma once

#include <string>
#include <vector>

#include "report/sheet.h"

namespace kvlab::report {

/// The words that `--format` takes.
const std::vector<std::string>& format_names();

/// Throws Error where `format` is none of them, with the nearest one.
void check_format(const std::string& format);

/// The table in a format of format_names(). `emphasis` marks the best value of a column and the
/// second.
///  - text: aligned columns for a terminal; emphasis is bold and underline by escape codes;
///  - markdown: a GitHub-flavoured table; emphasis is ** and <u>;
///  - latex: a tabular for the package booktabs; emphasis is \textbf and \underline; notes are
///    comments;
///  - csv: RFC 4180 with \r\n line ends, full precision, an empty field where there is no value; no
///    title, notes or emphasis.
std::string render(const Sheet& sheet, const std::string& format, bool emphasis);

}  // namespace kvlab::report
