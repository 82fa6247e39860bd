#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace kvlab {

/// SHA-256 of the bytes, 64 lower-case hex digits.
std::string sha256(std::string_view bytes);

/// SHA-256 of a file's bytes, read in slices. Throws Error where it cannot be read.
std::string sha256_file(const std::filesystem::path& path);

}  // namespace kvlab
