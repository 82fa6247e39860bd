#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace kvlab::report {

struct DatasetInfo {
  std::string name;  // relative to its group
  std::string type;  // "float32", "bfloat16", "string" …
  std::vector<int64_t> shape;
};

/// Groups beside each other that hold the same datasets of the same types and shapes.
struct GroupInfo {
  std::vector<std::string> groups;    // absolute paths
  std::vector<DatasetInfo> datasets;  // of each of them, with those of groups below
};

/// What a file holds.
struct Inspection {
  std::string file;
  std::string schema;  // empty where the file names none
  uint64_t bytes = 0;
  std::vector<std::pair<std::string, std::string>> attributes;  // of the root, but `schema`
  std::vector<GroupInfo> groups;
  std::vector<std::pair<std::string, int64_t>> counts;  // rows, cells by state; layers

  bool is_verified = false;
  int64_t checked_values = 0;         // numbers that were looked at, or checksums
  std::vector<std::string> problems;  // found on the way, a sentence each
};

/// Reads the structure of any HDF5 file, counts for the schemas of contract section 6. Throws Error
/// where it cannot be read at all.
Inspection inspect(const std::filesystem::path& path);

std::string inspection_text(const Inspection& inspection);
nlohmann::ordered_json inspection_json(const Inspection& inspection);

}  // namespace kvlab::report
