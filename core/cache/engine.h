#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kvlab/kernels/cache.h"
#include "kvlab/kernels/cuda_device.h"

namespace kvlab::cache {

/// Memory that an engine's kernels see.
using Memory = std::shared_ptr<void>;

/// Work that can be repeated; on a GPU it goes to the given stream.
using Work = std::function<void(kernels::cuda::Stream)>;

/// A packed backend: its memory, and the operations of kernels/ on it. What a kernel refuses is
/// thrown as Unsupported.
class Engine {
 public:
  virtual ~Engine() = default;

  /// Zeroed, on a boundary of 128 bytes.
  virtual Memory allocate(int64_t bytes) const = 0;
  /// The elements of a contiguous host tensor where kernels see them. The host shares them.
  virtual Memory place(const at::Tensor& contiguous) const = 0;
  virtual void write(void* to, const void* host, int64_t bytes) const = 0;
  virtual void read(void* host, const void* from, int64_t bytes) const = 0;

  /// Operations of kernels/cpu.h. max_tokens, most_tokens: bounds for grids and plans.
  virtual void write_windows(const kernels::CacheView& cache, const kernels::TokenSource& source,
                             int step, int max_tokens, kernels::cuda::Stream stream) const = 0;
  virtual void encode(const kernels::CacheView& cache, const kernels::EncodeSpec& spec,
                      const kernels::TokenSource& source, int step, int max_tokens,
                      kernels::cuda::Stream stream) const = 0;
  virtual void dequantize(const kernels::CacheView& cache, const kernels::EncodeSpec* spec,
                          void* key, void* value, kernels::Type type,
                          int64_t row_capacity) const = 0;
  /// attend for sequences of at most max_tokens tokens, planned once.
  virtual Work plan_attend(const kernels::CacheView& cache, const kernels::AttendArgs& args,
                           int max_tokens) const = 0;

  /// Nanoseconds of a run, after a warm-up: `runs` runs, one a sample or, on a GPU, some of them
  /// together as one CUDA graph a sample.
  virtual std::vector<double> time(const Work& work, int runs) const = 0;
};

/// What kernels call the type of a tensor of float32, float16 or bfloat16.
kernels::Type element_type(const at::Tensor& x);

/// The engine of "cpu" or "cuda". Throws Error where it is missing (backend.h).
std::shared_ptr<const Engine> make_engine(const std::string& backend);

}  // namespace kvlab::cache
