#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "store/store.h"

/// Shared by the functions of store.h.
namespace kvlab::store {

/// The HDF5 file that holds a cell's group, by cell id.
using Sources = std::map<std::string, std::filesystem::path>;

/// A results file as found, with where each of its cells is.
struct Loaded {
  Results results;
  Sources sources;
  Parts parts;
};

/// Reads FILE.h5 and its parts; without FILE.h5 only the parts, where `required` is false.
Loaded load(const std::filesystem::path& path, Detail detail, bool required = true);

/// Replaces `target` in one step. Cells named in `sources` are copied from there, the others
/// written from memory.
void write_file(const std::filesystem::path& target, const Results& results,
                const Sources& sources);

/// Throws Error unless the file's attribute `schema` is kResultsSchema.
void check_schema(const h5::File& file);

}  // namespace kvlab::store
