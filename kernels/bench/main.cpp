#include <benchmark/benchmark.h>

#include <cstdio>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/allocator.h"
#include "base/error.h"
#include "cache/backend.h"
#include "results_reporter.h"

namespace kvlab::bench {
void register_cpu();
void register_cpu_append();
void register_cuda();
void register_experiments();
void register_models();

namespace {

constexpr std::string_view kOut = "--kvlab_out=";

void print_help() {
  benchmark::PrintDefaultHelp();
  std::puts("          [--kvlab_out=<file.h5>]");
}

/// Takes `--kvlab_out FILE` and `--kvlab_out=FILE` out of the arguments.
std::optional<std::string> take_out(std::vector<char*>& arguments) {
  std::optional<std::string> file;
  for (auto at = arguments.begin(); at != arguments.end();) {
    const std::string_view text = *at;
    if (text.starts_with(kOut)) {
      file = text.substr(kOut.size());
      at = arguments.erase(at);
    } else if (text == kOut.substr(0, kOut.size() - 1) && at + 1 != arguments.end()) {
      file = *(at + 1);
      at = arguments.erase(at, at + 2);
    } else {
      ++at;
    }
  }
  return file;
}

int run(int argc, char** argv) {
  if (const auto missing = cache::missing_backend("cpu")) throw Error(*missing);
  std::string line;
  for (int i = 0; i < argc; ++i) line += (i > 0 ? " " : "") + std::string(argv[i]);
  std::vector<char*> arguments(argv, argv + argc);
  const std::optional<std::string> file = take_out(arguments);
  int count = static_cast<int>(arguments.size());
  arguments.push_back(nullptr);
  benchmark::Initialize(&count, arguments.data(), print_help);
  if (benchmark::ReportUnrecognizedArguments(count, arguments.data())) return 2;
  register_cuda();  // first: libtorch must not have looked for a GPU yet
  register_cpu();
  register_cpu_append();
  register_experiments();
  register_models();
  size_t matched = 0;
  if (file) {
    ResultsReporter reporter(*file, line);
    matched = benchmark::RunSpecifiedBenchmarks(&reporter);
  } else {
    matched = benchmark::RunSpecifiedBenchmarks();
  }
  benchmark::Shutdown();
  // The library has said that the filter fits nothing.
  return matched > 0 ? 0 : 2;
}

}  // namespace
}  // namespace kvlab::bench

int main(int argc, char** argv) {
  kvlab::keep_memory_low();
  try {
    return kvlab::bench::run(argc, argv);
  } catch (const kvlab::Error& error) {
    std::fprintf(stderr, "kvlab_bench: %s\n", error.what());
    return 2;
  }
}
