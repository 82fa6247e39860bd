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

/// Waits for all work on the GPU. Errors of earlier launches show here.
void synchronize();

/// Nanoseconds of each of `runs` runs by events on one stream, after a few warm-ups.
std::vector<double> time_runs(const std::function<void(Stream)>& run, int runs);

}  // namespace kvlab::kernels::cuda
