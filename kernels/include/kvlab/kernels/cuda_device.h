#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kvlab/kernels/cuda.h"

/// Memory and time of the GPU, for callers that do not see the CUDA headers. Failing CUDA calls
/// throw std::runtime_error with file, line and call.
namespace kvlab::kernels::cuda {

/// The GPU's name.
std::string device_name();

/// Zeroed device memory, freed with its last holder.
std::shared_ptr<void> allocate(std::int64_t bytes);

/// Copies between host and device, after all work before it.
void copy_in(void* device, const void* host, std::int64_t bytes);
void copy_out(void* host, const void* device, std::int64_t bytes);

/// A copy of the numbers in GPU memory.
template <class T>
std::shared_ptr<void> upload(const std::vector<T>& host) {
  const auto bytes = static_cast<std::int64_t>(host.size() * sizeof(T));
  std::shared_ptr<void> memory = allocate(bytes);
  copy_in(memory.get(), host.data(), bytes);
  return memory;
}

/// Waits for all work on the GPU. Errors of earlier launches show here.
void synchronize();

/// Copies within the GPU's memory, as work on the stream.
void copy_within(void* to, const void* from, std::int64_t bytes, Stream stream);

/// Nanoseconds of a launch: `samples` samples, each the mean of one CUDA graph of launch(0) …
/// launch(launches − 1), by events around it. The graph runs before each sample too, so that the
/// GPU is busy while the sample is sent to it: neither the way from the CPU nor gaps between
/// launches are in a sample. `launch` is called twice for each i: plainly, as a warm-up, and for
/// the graph.
std::vector<double> time_graph(const std::function<void(int i, Stream)>& launch, int launches,
                               int samples);

}  // namespace kvlab::kernels::cuda
