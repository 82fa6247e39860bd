#pragma once

#include <string>
#include <string_view>

namespace kvlab::report {

/// UTF-8 text as a cell of a tabular that pdflatex sets with its defaults (encoding OT1, no
/// package): what LaTeX takes for a command or an argument is escaped, and letters that its fonts
/// lack become mathematics or, where there is none for them, their code point: "\texttt{U+4E2D}".
std::string latex_text(std::string_view text);

}  // namespace kvlab::report
