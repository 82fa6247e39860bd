#include "base/output_file.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "base/h5.h"
#include "base/replacement.h"

namespace kvlab {
namespace fs = std::filesystem;
namespace {

/// The folder that `file` will be in, or the nearest one above it that is there already.
fs::path nearest_folder(const fs::path& file) {
  std::error_code ignored;
  fs::path folder = fs::absolute(file).parent_path();
  while (!fs::exists(folder, ignored) && folder.has_relative_path()) folder = folder.parent_path();
  return folder;
}

}  // namespace

void check_names_file(const fs::path& out) {
  if (out.empty() || !out.has_filename()) {
    throw Error(fmt::format("the output '{}' names no file to write", out.string()));
  }
  std::error_code ignored;
  if (fs::is_directory(out, ignored)) {
    throw Error(fmt::format("{}: is a folder; name a file", out.string()));
  }
}

void check_output(const fs::path& out, std::string_view schema) {
  check_names_file(out);
  const fs::path target = behind_links(out);
  const fs::path folder = nearest_folder(target);
  // The system is asked to write a file and to enter the folder: a file in place of a folder fails.
  if (access((folder / "").c_str(), W_OK | X_OK) != 0) {
    throw Error(fmt::format("{}: cannot be written: {}: {}", out.string(), folder.string(),
                            std::strerror(errno)));
  }
  std::error_code ignored;
  if (!fs::exists(target, ignored)) return;
  if (schema.empty()) {
    throw Error(
        fmt::format("{}: is there already; remove it or choose another name", out.string()));
  }
  // One that is damaged, or no HDF5 file, may be anything.
  const auto found = h5::File::open(target).attribute_or<std::string>("/", "schema", "");
  if (found != schema) {
    throw Error(fmt::format("{}: would be written over, and it is no {} file but '{}'",
                            out.string(), schema, found));
  }
}

}  // namespace kvlab
