#pragma once

#include <filesystem>
#include <string>

namespace kvlab::bench {

/// A folder of its own under the system's temporary one, removed with all it holds.
class Scratch {
 public:
  Scratch();
  Scratch(const Scratch&) = delete;
  ~Scratch();

  std::filesystem::path operator/(const std::string& name) const { return folder_ / name; }

 private:
  std::filesystem::path folder_;
};

/// Bytes of memory this process holds now, and the most it has held since reset_peak().
int64_t resident_bytes();
int64_t peak_bytes();
void reset_peak();

}  // namespace kvlab::bench
