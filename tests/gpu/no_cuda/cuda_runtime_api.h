#pragma once

#include <cstddef>

/// What the checks use of CUDA's runtime, for builds that have none: their cases are compiled and
/// counted everywhere, and a call fails.
enum cudaError_t { cudaSuccess = 0, cudaErrorNoDevice = 100 };
enum cudaMemcpyKind { cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost = 2 };

inline cudaError_t cudaMalloc(void**, std::size_t) { return cudaErrorNoDevice; }
inline cudaError_t cudaFree(void*) { return cudaErrorNoDevice; }
inline cudaError_t cudaMemset(void*, int, std::size_t) { return cudaErrorNoDevice; }
inline cudaError_t cudaMemcpy(void*, const void*, std::size_t, cudaMemcpyKind) {
  return cudaErrorNoDevice;
}
inline cudaError_t cudaDeviceSynchronize() { return cudaErrorNoDevice; }
inline cudaError_t cudaGetLastError() { return cudaErrorNoDevice; }
inline const char* cudaGetErrorString(cudaError_t) { return "this build has no CUDA runtime"; }
