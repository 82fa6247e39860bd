#pragma once

#include <filesystem>

/// Files of others may be damaged in ways that HDF5 1.10 does not survive.
namespace kvlab::h5 {

/// Walks through a file in a process of its own, once for each state of the file. Throws Error
/// where that process crashed, did not come to an end, or found an object or attribute that cannot
/// be read; whatever else is wrong is left to the reader, who says it better. Takes milliseconds:
/// large arrays are opened, and not read.
void probe(const std::filesystem::path& path);

/// The file is as it was written (a checksum over its bytes is right): no need to probe it.
void trust(const std::filesystem::path& path);

}  // namespace kvlab::h5
