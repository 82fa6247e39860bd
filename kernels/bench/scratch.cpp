#include "scratch.h"

#include <unistd.h>

#include <fstream>
#include <sstream>

namespace kvlab::bench {
namespace {

/// A "VmRSS:   123 kB" line of /proc/self/status, in bytes.
int64_t status_bytes(const std::string& name) {
  std::ifstream in("/proc/self/status");
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with(name + ":")) continue;
    std::istringstream fields(line.substr(name.size() + 1));
    int64_t kilobytes = 0;
    fields >> kilobytes;
    return kilobytes * 1024;
  }
  return 0;
}

}  // namespace

Scratch::Scratch() {
  std::string name = (std::filesystem::temp_directory_path() / "kvlab_bench_XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr)
    throw std::runtime_error("no temporary folder can be made");
  folder_ = name;
}

Scratch::~Scratch() {
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

int64_t resident_bytes() { return status_bytes("VmRSS"); }
int64_t peak_bytes() { return status_bytes("VmHWM"); }

// Linux resets the high-water mark of a process that writes 5 here.
void reset_peak() { std::ofstream("/proc/self/clear_refs") << "5"; }

}  // namespace kvlab::bench
