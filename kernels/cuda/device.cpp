#include <cuda_runtime_api.h>

#include <string>

#include "check.h"
#include "kvlab/kernels/cuda.h"

namespace kvlab::kernels::cuda {
namespace {

struct Capability {
  int major = 0;
  int minor = 0;
};

Capability capability_of(int id) {
  Capability capability;
  KVLAB_CUDA(cudaDeviceGetAttribute(&capability.major, cudaDevAttrComputeCapabilityMajor, id));
  KVLAB_CUDA(cudaDeviceGetAttribute(&capability.minor, cudaDevAttrComputeCapabilityMinor, id));
  return capability;
}

int current_device() {
  int id = 0;
  KVLAB_CUDA(cudaGetDevice(&id));
  return id;
}

/// Empty where the machine has a GPU with code in this build, else why not.
std::string obstacle() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) {
    cudaGetLastError();
    return std::string("no CUDA GPU can be used: ") + cudaGetErrorString(error);
  }
  if (count == 0) return "this machine has no CUDA GPU";
  const Capability has = capability_of(current_device());
  // The build holds machine code of sm_80, which runs on all of 8.x, and of sm_90a, which runs
  // on 9.0 alone.
  if (has.major == 8 || (has.major == 9 && has.minor == 0)) return {};
  return "the GPU has compute capability " + std::to_string(has.major) + "." +
         std::to_string(has.minor) + ", this build has code for 8.x and 9.0";
}

}  // namespace

bool available(std::string* why) {
  const std::string reason = obstacle();
  if (why) *why = reason;
  return reason.empty();
}

Device device() {
  const int id = current_device();
  Device device;
  device.major = capability_of(id).major;
  KVLAB_CUDA(cudaDeviceGetAttribute(&device.multiprocessors, cudaDevAttrMultiProcessorCount, id));
  return device;
}

}  // namespace kvlab::kernels::cuda
