#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <string>
#include <vector>

#include "checks.h"
#include "kvlab/kernels/cuda.h"

/// kvlab_gpu_check [--filter TEXT] [--small] [--list]: one line a case, then a count; exit code 1
/// on a failure, 4 where there is no GPU to check on.
namespace {

using kvlab::gpu_check::Case;

struct Options {
  std::string filter;
  bool small = false;
  bool list = false;
};

bool read(int count, char** words, Options& options) {
  for (int i = 1; i < count; ++i) {
    if (std::strcmp(words[i], "--small") == 0) {
      options.small = true;
    } else if (std::strcmp(words[i], "--list") == 0) {
      options.list = true;
    } else if (std::strcmp(words[i], "--filter") == 0 && i + 1 < count) {
      options.filter = words[++i];
    } else {
      std::fprintf(stderr, "usage: kvlab_gpu_check [--filter TEXT] [--small] [--list]\n");
      return false;
    }
  }
  return true;
}

/// Prints the case's line; true where nothing failed.
bool run(const Case& one) {
  const auto begin = std::chrono::steady_clock::now();
  std::string note;
  std::vector<std::string> failures;
  try {
    failures = one.run(note);
  } catch (const std::exception& error) {
    failures.push_back(error.what());
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  std::printf("%s %s (%.2f s) %s\n", failures.empty() ? "ok  " : "FAIL", one.name.c_str(),
              seconds.count(), note.c_str());
  for (const std::string& sentence : failures) std::printf("     %s\n", sentence.c_str());
  std::fflush(stdout);
  return failures.empty();
}

}  // namespace

int main(int count, char** words) {
  Options options;
  if (!read(count, words, options)) return 2;
  // The oracle is the plain float32 code, one number at a time.
  setenv("KVLAB_CPU", "portable", 1);
  std::vector<Case> cases;
  for (Case& one : kvlab::gpu_check::all_cases(options.small)) {
    if (one.name.find(options.filter) != std::string::npos) cases.push_back(std::move(one));
  }
  if (options.list) {
    for (const Case& one : cases) std::printf("%s\n", one.name.c_str());
    return 0;
  }
  std::string why;
  if (!kvlab::kernels::cuda::available(&why)) {
    std::printf("%zu cases skipped: %s\n", cases.size(), why.c_str());
    return 4;
  }
  std::size_t failed = 0;
  for (const Case& one : cases) failed += run(one) ? 0 : 1;
  std::printf("%zu cases, %zu failed\n", cases.size(), failed);
  return failed == 0 && !cases.empty() ? 0 : 1;
}
