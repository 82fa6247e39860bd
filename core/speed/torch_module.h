#pragma once

#include <string>

namespace kvlab::speed {

/// Why libtorch's half on the GPU is not there: the library libkvlab_torch_cuda.so beside this
/// program (torch_cuda/), or what it needs; empty where it is. It must be asked before libtorch
/// does anything else, which would find no GPU.
const std::string& missing_torch_cuda();

/// A function of that library; null where the library is missing or of another version.
void* torch_cuda_symbol(const char* name);

}  // namespace kvlab::speed

/// The same with the type that torch_cuda/ declares it with.
#define KVLAB_TORCH_CUDA(name) \
  reinterpret_cast<decltype(&name)>(::kvlab::speed::torch_cuda_symbol(#name))
