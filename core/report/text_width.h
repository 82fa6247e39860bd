#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace kvlab::report {

/// The code point of UTF-8 text at `at`, which moves behind it. A byte that starts none counts as
/// one.
uint32_t next_code(std::string_view text, size_t* at);

/// Columns that UTF-8 text takes on a terminal: combining marks take none, East Asian wide
/// characters and emoji two.
size_t display_width(std::string_view text);

enum class Align { left, right };

/// The text filled up with spaces to this many columns.
std::string padded(const std::string& text, size_t width, Align align);

/// The text with line ends, tabs and other control characters as single spaces.
std::string one_line(std::string_view text);

}  // namespace kvlab::report
