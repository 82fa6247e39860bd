#include "library.h"

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>

#include "torch_attention.h"

namespace kvlab::torch_cuda {

std::string& last_error() {
  static std::string text;
  return text;
}

c10::cuda::CUDAStream own_stream() {
  static const c10::cuda::CUDAStream stream = c10::cuda::getStreamFromPool();
  return stream;
}

void clean_up() {
  c10::cuda::device_synchronize();
  c10::cuda::CUDACachingAllocator::emptyCache();
}

}  // namespace kvlab::torch_cuda

const char* kvlab_torch_error() { return kvlab::torch_cuda::last_error().c_str(); }
