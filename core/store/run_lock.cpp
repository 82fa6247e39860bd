#include "store/run_lock.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "base/error.h"
#include "base/replacement.h"

namespace kvlab::store {
namespace fs = std::filesystem;
namespace {

/// Beside the file itself, so that two names of one file have one lock.
fs::path lock_path(const fs::path& results) { return behind_links(results).string() + ".lock"; }

std::string host() {
  char name[256] = {};
  gethostname(name, sizeof name - 1);
  return name;
}

std::string holder(const fs::path& path) {
  std::string text;
  std::getline(std::ifstream(path) >> std::ws, text);
  return text.empty() ? "another process" : text;
}

/// Whether the open file is still the one of this name: its last holder may have removed it
/// meanwhile.
bool is_same_file(int descriptor, const fs::path& path) {
  struct stat opened = {};
  struct stat named = {};
  return fstat(descriptor, &opened) == 0 && stat(path.c_str(), &named) == 0 &&
         opened.st_ino == named.st_ino && opened.st_dev == named.st_dev;
}

}  // namespace

RunLock::RunLock(const fs::path& results) : path_(lock_path(results)) {
  make_folder_of(results);
  while (true) {
    descriptor_ = open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (descriptor_ < 0) {
      throw Error(fmt::format("{}: its folder cannot be written: {}", results.string(),
                              std::strerror(errno)));
    }
    if (flock(descriptor_, LOCK_EX | LOCK_NB) != 0) {
      const int reason = errno;
      if (reason == ENOSYS || reason == ENOTSUP || reason == ENOLCK) {
        effective_ = false;
        return;
      }
      close(descriptor_);
      throw Error(
          fmt::format("{}: another run is writing it ({}); wait until that ends, or give this one "
                      "another output",
                      results.string(), holder(path_)));
    }
    if (is_same_file(descriptor_, path_)) break;
    close(descriptor_);
  }
  const std::string text = fmt::format("process {} on host {}\n", getpid(), host());
  // The text only serves the message of a second run: a full disk is no reason to stop here.
  if (ftruncate(descriptor_, 0) == 0) {
    [[maybe_unused]] const ssize_t written = write(descriptor_, text.data(), text.size());
  }
}

RunLock::~RunLock() {
  if (effective_) unlink(path_.c_str());
  close(descriptor_);
}

std::string running(const fs::path& results) {
  const fs::path path = lock_path(results);
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return "";
  const bool free = flock(descriptor, LOCK_SH | LOCK_NB) == 0;
  const bool held = !free && errno == EWOULDBLOCK;
  close(descriptor);
  return held ? holder(path) : "";
}

}  // namespace kvlab::store
