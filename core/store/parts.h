#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "store/results.h"

namespace kvlab::store {

/// FILE.h5.parts, the folder with one file for each cell that was finished since FILE.h5 was last
/// replaced.
std::filesystem::path parts_folder(const std::filesystem::path& results);

/// Stores a finished cell as FILE.h5.parts/<id>.h5 in one step, with a checksum over the whole
/// file. Any number of threads may do so at once. Throws Error (disk full, folder not writable) and
/// then leaves no file behind.
void write_part(const std::filesystem::path& results, const CellResult& cell);

/// The parts of a results file.
struct Parts {
  std::map<std::string, std::filesystem::path> files;  // by cell id
  std::vector<std::filesystem::path> ignored;          // torn (checksum) or foreign files
};

/// Finds the parts and checks their checksums. No folder, no parts.
Parts find_parts(const std::filesystem::path& results);

/// Removes these files, what killed programs left half-written, and the folder if nothing else is
/// in it.
void remove_parts(const std::filesystem::path& results, const Parts& parts);

}  // namespace kvlab::store
