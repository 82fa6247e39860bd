#include "run/provenance.h"

#include <fmt/format.h>
#include <sched.h>
#include <torch/version.h>
#include <unistd.h>

#include <array>
#include <fstream>
#include <thread>

#include "base/code_version.h"
#include "base/h5.h"
#include "base/schemas.h"
#include "cache/backend.h"
#include "run/cell.h"

namespace kvlab::run {
namespace {

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "unknown";
}

/// "model name" of /proc/cpuinfo.
std::string cpu_name() {
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown";
}

}  // namespace

std::string command_line() {
  std::ifstream in("/proc/self/cmdline", std::ios::binary);
  std::string text;
  for (std::string word; std::getline(in, word, '\0');) {
    const bool is_plain = word.find_first_of(" \t\n'\"{}[]()*?$&|;<>#`\\") == std::string::npos;
    if (!text.empty()) text += ' ';
    text += is_plain ? word : "'" + word + "'";
  }
  return text;
}

int64_t cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1U, std::thread::hardware_concurrency());
}

std::map<std::string, std::string> provenance(const config::Experiment& experiment,
                                              const Options& options) {
  return {
      {"schema", kResultsSchema},
      {"name", experiment.name},
      {"created", timestamp()},
      {"code_version", code_version()},
      {"code_dirty", code_dirty() ? "true" : "false"},
      {"argv", options.argv},
      {"host", host_name()},
      {"cpu", cpu_name()},
      {"cores", std::to_string(cores())},
      {"gpu", cache::gpu_name()},
      {"backend", experiment.backend},
      {"experiment_file", experiment.file.string()},
      {"libtorch_version", TORCH_VERSION},
      {"hdf5_version", h5::library_version()},
      {"compiler", fmt::format("{} {}",
#if defined(__clang__)
                               "clang",
#else
                               "gcc",
#endif
                               __VERSION__)},
  };
}

}  // namespace kvlab::run
