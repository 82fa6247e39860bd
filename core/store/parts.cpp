#include "store/parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

#include "base/error.h"
#include "base/h5.h"
#include "base/h5_probe.h"
#include "base/hash.h"
#include "base/replacement.h"
#include "base/schemas.h"
#include "store/cell_io.h"

namespace kvlab::store {
namespace fs = std::filesystem;
namespace {

/// A part is an HDF5 file with one line behind it, which HDF5 does not mind: schema, cell, bytes
/// before the line, their SHA-256. A file that was cut, renamed, or put there by somebody else is
/// told by it before HDF5 sees a byte.
std::string trailer(const std::string& id, std::string_view bytes) {
  return fmt::format("\n{} {} {:020} {}\n", kPartSchema, id, bytes.size(), sha256(bytes));
}

std::string bytes_of(const fs::path& path) {
  std::ostringstream buffer;
  buffer << std::ifstream(path, std::ios::binary).rdbuf();
  return std::move(buffer).str();
}

bool is_whole(const fs::path& path) {
  const std::string id = path.stem().string();
  const std::string all = bytes_of(path);
  const size_t trailer_size = trailer(id, "").size();
  if (all.size() <= trailer_size) return false;
  const std::string_view bytes = std::string_view(all).substr(0, all.size() - trailer_size);
  if (std::string_view(all).substr(bytes.size()) != trailer(id, bytes)) return false;
  h5::trust(path);
  return true;
}

void append_trailer(const fs::path& path, const std::string& id, const fs::path& results) {
  const std::string line = trailer(id, bytes_of(path));
  std::ofstream out(path, std::ios::binary | std::ios::app);
  out << line << std::flush;
  if (!out) {
    throw Error(fmt::format("{}: a finished cell cannot be written: {}", results.string(),
                            std::strerror(errno)));
  }
}

}  // namespace

fs::path parts_folder(const fs::path& results) { return behind_links(results).string() + ".parts"; }

void write_part(const fs::path& results, const CellResult& cell) {
  const fs::path target = parts_folder(results) / (cell.id + ".h5");
  make_folder_of(target);
  Replacement replacement(target);
  h5::File file = h5::File::create(replacement.temp(), results);
  file.set_attribute("/", "schema", kPartSchema);
  write_cell(file, cell);
  file.close();
  append_trailer(replacement.temp(), cell.id, results);
  replacement.commit();
}

Parts find_parts(const fs::path& results) {
  Parts parts;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(parts_folder(results), error)) {
    const fs::path& path = entry.path();
    const std::string name = path.filename().string();
    if (name.starts_with(".") && name.ends_with(".tmp")) continue;
    if (path.extension() == ".h5" && is_whole(path)) {
      parts.files[path.stem().string()] = path;
    } else if (fs::exists(path, error)) {  // else folded in by the run meanwhile
      parts.ignored.push_back(path);
    }
  }
  std::sort(parts.ignored.begin(), parts.ignored.end());
  return parts;
}

void remove_parts(const fs::path& results, const Parts& parts) {
  std::error_code error;
  for (const auto& [id, path] : parts.files) fs::remove(path, error);
  for (const fs::directory_entry& entry : fs::directory_iterator(parts_folder(results), error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(".") && name.ends_with(".tmp")) fs::remove(entry.path(), error);
  }
  fs::remove(parts_folder(results), error);  // fails, as it should, where something is left
}

}  // namespace kvlab::store
