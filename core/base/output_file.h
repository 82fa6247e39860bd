#pragma once

#include <filesystem>
#include <string_view>

namespace kvlab {

/// Throws Error where `out` is empty, ends with a slash, or is a folder.
void check_names_file(const std::filesystem::path& out);

/// Asked before the work whose result goes to `out`, which a command names: whether it can be
/// written there, and that nothing is lost. What is there already may be replaced only if it is an
/// HDF5 file of this schema; with an empty schema nothing may be. Throws Error.
void check_output(const std::filesystem::path& out, std::string_view schema);

}  // namespace kvlab
