#include "base/error.h"
#include "base/h5_digest.h"
#include "store/sources.h"

namespace kvlab::store {
namespace fs = std::filesystem;
namespace {

bool is_as_written(const h5::File& file, const std::string& id) {
  try {
    return h5::is_intact(file, cell_group(id));
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

std::set<std::string> damaged_cells(const fs::path& path, const std::set<std::string>& ids) {
  std::set<std::string> in_file = ids;
  // Parts are checked as a whole whenever they are found.
  for (const auto& [id, part] : find_parts(path).files) in_file.erase(id);
  if (in_file.empty()) return {};
  const h5::File file = h5::File::open(path);
  std::erase_if(in_file, [&](const std::string& id) { return is_as_written(file, id); });
  return in_file;
}

}  // namespace kvlab::store
