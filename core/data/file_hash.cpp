#include "data/file_hash.h"

#include <fmt/format.h>

#include <map>
#include <mutex>
#include <system_error>
#include <tuple>

#include "base/error.h"
#include "base/hash.h"

namespace kvlab::data {

namespace fs = std::filesystem;

std::string cached_sha256(const fs::path& path) {
  using Key = std::tuple<std::string, std::uintmax_t, fs::file_time_type>;
  static std::mutex mutex;
  static std::map<Key, std::string> known;

  std::error_code code;
  const Key key = {fs::weakly_canonical(path, code).string(), fs::file_size(path, code),
                   fs::last_write_time(path, code)};
  if (code) throw Error(fmt::format("{}: {}", path.string(), code.message()));
  // Held while hashing: whoever asks for the same file meanwhile waits instead of reading it again.
  const std::lock_guard lock(mutex);
  const auto found = known.find(key);
  if (found != known.end()) return found->second;
  return known[key] = sha256_file(path);
}

}  // namespace kvlab::data
