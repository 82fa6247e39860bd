#include <cuda.h>

#include <algorithm>

#include "check.h"
#include "token_map.h"
#include "token_stage.cuh"

namespace kvlab::kernels::cuda {

TokenMap map_of(const void* tokens, const CacheView& cache, const TokenSource& source) {
  // The driver's function, by way of the runtime: the library is not linked with the driver.
  static const auto encode = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result{};
    KVLAB_CUDA(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000,
                                                cudaEnableDefault, &result));
    if (result != cudaDriverEntryPointSuccess) {
      throw std::runtime_error("the CUDA driver has no cuTensorMapEncodeTiled");
    }
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(found);
  }();
  constexpr cuuint32_t kHalf = kFastDim / 2;
  // Only tokens that exist are asked for, so the map need not know how many there are.
  constexpr cuuint64_t kAny = 1u << 31;
  const auto bytes = [](std::int64_t stride) {
    return static_cast<cuuint64_t>(std::max<std::int64_t>(2 * stride, 16));
  };
  const cuuint64_t sizes[5] = {kHalf, kAny, 2, static_cast<cuuint64_t>(cache.kv_heads),
                               static_cast<cuuint64_t>(cache.batch)};
  const cuuint64_t strides[4] = {bytes(source.token_stride), 2 * kHalf, bytes(source.head_stride),
                                 bytes(source.batch_stride)};
  const cuuint32_t box[5] = {kHalf, kStageTokens, 2, 1, 1};
  const cuuint32_t steps[5] = {1, 1, 1, 1, 1};
  CUtensorMap map;
  const CUresult made =
      encode(&map, CU_TENSOR_MAP_DATA_TYPE_UINT16, 5, const_cast<void*>(tokens), sizes, strides,
             box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (made != CUDA_SUCCESS) {
    throw std::runtime_error("cuTensorMapEncodeTiled: error " +
                             std::to_string(static_cast<int>(made)));
  }
  static_assert(sizeof(TokenMap) == sizeof map);
  TokenMap result;
  std::memcpy(&result, &map, sizeof map);
  return result;
}

}  // namespace kvlab::kernels::cuda
