#pragma once

#include <cuda_runtime_api.h>

#include "check.h"
#include "kvlab/kernels/cuda.h"

/// Programmatic dependent launch (compute capability 9.0): a launch's blocks may be set up while
/// the launch before it in the stream still ends. Every kernel that is launched so waits before it
/// touches memory, so the stream's order holds for all that it reads and writes.
namespace kvlab::kernels::cuda {

/// Waits until all that came before in the stream is done and visible.
__device__ __forceinline__ void wait_for_predecessor() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// Lets the next launch's blocks be set up where there is room for them; after
/// wait_for_predecessor.
__device__ __forceinline__ void release_successor() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/// Shared memory of a block with which a multiprocessor takes no more than its share of `blocks`
/// blocks, so that those of the next launch do not crowd on some of them.
inline int room_for_one_launch(int blocks) {
  constexpr int kOfMultiprocessor = 227 * 1024;
  const Device& gpu = device();
  if (gpu.major < 9) return 0;
  const int share = (blocks + gpu.multiprocessors - 1) / gpu.multiprocessors;
  return kOfMultiprocessor / (share + 1) + 128;
}

template <class... Parameters, class... Arguments>
void launch_after(void (*kernel)(Parameters...), dim3 grid, int threads, int shared_bytes,
                  Stream stream, const Arguments&... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = static_cast<std::size_t>(shared_bytes);
  config.stream = stream;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute;
  config.numAttrs = device().major >= 9 ? 1 : 0;
  KVLAB_CUDA(cudaLaunchKernelEx(&config, kernel, arguments...));
}

}  // namespace kvlab::kernels::cuda
