#pragma once

#include <cuda_runtime_api.h>

#include <cstring>
#include <stdexcept>
#include <string>

namespace kvlab::kernels::cuda {

/// Throws std::runtime_error with file, line, call and the runtime's name of the error, and clears
/// it so that the next call is not blamed.
inline void check(cudaError_t error, const char* call, const char* file, int line) {
  if (error == cudaSuccess) return;
  cudaGetLastError();
  const char* name = std::strrchr(file, '/');
  throw std::runtime_error(std::string(name ? name + 1 : file) + ":" + std::to_string(line) + ": " +
                           call + ": " + cudaGetErrorName(error) + " (" +
                           cudaGetErrorString(error) + ")");
}

}  // namespace kvlab::kernels::cuda

/// Calls a function of the CUDA runtime; a launch is checked by KVLAB_CUDA(cudaGetLastError())
/// behind it.
#define KVLAB_CUDA(call) ::kvlab::kernels::cuda::check((call), #call, __FILE__, __LINE__)
