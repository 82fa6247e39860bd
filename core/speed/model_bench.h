#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "store/results.h"

namespace kvlab::speed {

/// What `kvlab bench-model` times: decoding steps of Qwen3-8B with random bf16 weights.
struct BenchRequest {
  int layers = 36;
  std::vector<std::string> formats = {"bf16", "f1", "f2"};  // bf16, or names of kernels/format.h
  std::vector<int> contexts = {1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072};  // at batch 1
  std::vector<int> batches = {1, 2, 4, 8, 16, 32, 48, 64, 128, 256};                  // at 4,096
  bool largest = true;  // and the largest batch of 4,096 tokens that fits, of each format
  int steps = 128;      // timed in each case
  double seconds = 0;   // no case is begun after so many; 0: no limit
};

/// One case: a row of the file.
struct BenchCase {
  std::string backend;  // cuda, torch_cudnn, torch_flash
  std::string format;   // bf16, f1, f2, …
  int batch = 1;        // 0: the largest that fits
  int tokens = 4096;
};

/// All cases of a request, those that matter most first.
std::vector<BenchCase> cases_of(const BenchRequest& request);

/// Times them and writes kvlab.results/1, anew every few seconds: a row a case with step_us (the
/// median step), its 99th percentile and the longest, the matrix products and the attention alone,
/// tokens a second and bytes; raw samples in /cells. A case that does not fit is `unsupported`, one
/// that the time limit leaves out `interrupted`. Throws Error where there is no GPU, libtorch's
/// half on the GPU is missing, or the file cannot be written. Returns how many cases failed.
int run_bench(const BenchRequest& request, const std::filesystem::path& out,
              const std::function<void(const std::string& line)>& report);

}  // namespace kvlab::speed
