#pragma once

#include <filesystem>
#include <string>

namespace kvlab::data {

/// SHA-256 of a file's bytes. Computed once a process for a file of one path, size and time of
/// change; thread-safe. Throws Error where it cannot be read.
std::string cached_sha256(const std::filesystem::path& path);

}  // namespace kvlab::data
