#include "base/replacement.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace kvlab {
namespace fs = std::filesystem;
namespace {

fs::path folder_of(const fs::path& file) {
  return file.has_parent_path() ? file.parent_path() : fs::path(".");
}

/// Whether this is the temporary file of a replacement of `target`: ".NAME.<process>-<count>.tmp".
bool is_leftover(const std::string& name, const std::string& target) {
  const std::string prefix = "." + target + ".";
  constexpr std::string_view suffix = ".tmp";
  if (!name.starts_with(prefix) || !name.ends_with(suffix)) return false;
  const std::string middle =
      name.substr(prefix.size(), name.size() - prefix.size() - suffix.size());
  return middle.find_first_not_of("0123456789-") == std::string::npos;
}

/// Flushes a file or folder to the disk; false where the system says that this failed.
bool sync(const fs::path& path, int flags) {
  const int descriptor = open(path.c_str(), flags | O_CLOEXEC);
  if (descriptor < 0) return false;
  const int result = fsync(descriptor);
  const int reason = errno;
  close(descriptor);
  errno = reason;
  // Some file systems cannot sync a folder.
  return result == 0 || reason == EINVAL;
}

}  // namespace

fs::path behind_links(fs::path target) {
  constexpr int kMostLinks = 40;  // as the system follows at most
  const fs::path given = target;
  std::error_code error;
  for (int i = 0; fs::is_symlink(target, error); ++i) {
    if (i == kMostLinks) {
      throw Error(fmt::format("{}: its symbolic links lead round in a circle", given.string()));
    }
    target = folder_of(target) / fs::read_symlink(target, error);
  }
  return target;
}

Replacement::Replacement(const fs::path& target) : target_(behind_links(target)) {
  static std::atomic<int> count = 0;
  temp_ = folder_of(target_) /
          fmt::format(".{}.{}-{}.tmp", target_.filename().string(), getpid(), count++);
}

Replacement::~Replacement() {
  std::error_code ignored;
  if (!committed_) fs::remove(temp_, ignored);
}

void Replacement::commit() {
  if (!sync(temp_, O_RDONLY) || rename(temp_.c_str(), target_.c_str()) != 0) {
    throw Error(fmt::format("{}: cannot be written: {}", target_.string(), std::strerror(errno)));
  }
  committed_ = true;
  sync(folder_of(target_), O_RDONLY | O_DIRECTORY);
}

void remove_leftovers(const fs::path& target) {
  const fs::path real = behind_links(target);
  const std::string target_name = real.filename().string();
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder_of(real), error)) {
    if (is_leftover(entry.path().filename().string(), target_name)) fs::remove(entry.path(), error);
  }
}

void make_folder_of(const fs::path& file) {
  std::error_code error;
  fs::create_directories(folder_of(file), error);
  if (error) {
    throw Error(fmt::format("{}: its folder cannot be made: {}", file.string(), error.message()));
  }
}

}  // namespace kvlab
