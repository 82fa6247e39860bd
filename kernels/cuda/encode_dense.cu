#include <cstdlib>
#include <cstring>

#include "check.h"
#include "encode_fast.cuh"
#include "fast_store.cuh"
#include "kvlab/kernels/cuda.h"
#include "wgmma.cuh"

namespace kvlab::kernels::cuda {
namespace {

constexpr int kWarps = 4;  // a warpgroup

/// A rotation as a sum of 16-bit matrices that has the precision of float32: three of bf16, or two
/// of fp16, which has more bits but a smaller range and is scaled up.
template <bool kBf16>
struct Split {
  static constexpr int parts = kBf16 ? 3 : 2;
  static constexpr float scale = kBf16 ? 1.0f : 256.0f;
};

/// Channel of a column of the product: of keys or of values in a tile's order.
KVLAB_HD constexpr int channel_of_column(bool key, int n) {
  const int f = n / 16;
  return key ? 32 * (f / 2) + 8 * (n % 8 / 2) + 4 * (f % 2) + 2 * (n / 8 % 2) + n % 2 : n;
}

/// Channel of a row of the product: tokens are loaded as keys are, 16 bytes a lane.
KVLAB_HD constexpr int channel_of_row(int k) {
  const int f = k / 16;
  return 32 * (f / 2) + 8 * (k % 8 / 2) + 4 * (f % 2) + 2 * (k / 8 % 2) + k % 2;
}

/// Splits a rotation [d, d] into shared memory; all threads.
template <bool kBf16>
__device__ void split_matrix(const float* rotation, bool key, std::uint16_t* shared) {
  constexpr Type type = kBf16 ? Type::bf16 : Type::f16;
  for (int i = threadIdx.x; i < kFastDim * kFastDim; i += 32 * kWarps) {
    // Neighbouring threads read neighbouring columns of one row.
    const int k = i / kFastDim;
    const int n = i % kFastDim;
    float rest =
        rotation[channel_of_row(k) * kFastDim + channel_of_column(key, n)] * Split<kBf16>::scale;
#pragma unroll
    for (int part = 0; part < Split<kBf16>::parts; ++part) {
      const float number = round_to(rest, type);
      store_number(shared + part * (kMatrixBytes / 2), matrix_place(k, n), type, number);
      rest = add(rest, -number);
    }
  }
}

/// A warp's tokens as operands of the product: [16 k][row 0, row 1, row 0, row 1 of the upper k].
struct Operands {
  uint4 word[kFragments];
};

__device__ __forceinline__ void load_operands(Operands& operands, const Rows& rows, int lane) {
#pragma unroll
  for (int c = 0; c < kFragments / 2; ++c) {
    const uint4 a = load_or_zero<uint4>(rows.row[0], 32 * c + lane % 4 * 8);
    const uint4 b = load_or_zero<uint4>(rows.row[1], 32 * c + lane % 4 * 8);
    operands.word[2 * c] = make_uint4(a.x, b.x, a.y, b.y);
    operands.word[2 * c + 1] = make_uint4(a.z, b.z, a.w, b.w);
  }
}

template <bool kBf16>
__device__ __forceinline__ void rotate_tile(Tile& tile, const Operands& operands,
                                            std::uint32_t shared) {
  begin_products();
#pragma unroll
  for (int f = 0; f < kFragments; ++f) {
#pragma unroll
    for (int part = 0; part < Split<kBf16>::parts; ++part) {
      const std::uint64_t matrix =
          matrix_descriptor(shared + part * kMatrixBytes + f * 2 * kHalfBytes);
      multiply_matrix<kBf16>(tile, operands.word[f], matrix, f + part > 0);
    }
  }
  finish_products();
}

/// A thread block keeps one rotation and takes the blocks of the cache that need it in turn; a warp
/// has a tile.
template <bool kBf16, bool kChannelKeys>
__global__ void __launch_bounds__(32 * kWarps, 2)
    dense_kernel(const __grid_constant__ CacheView cache, const __grid_constant__ EncodeSpec spec,
                 const __grid_constant__ TokenSource source, Side side, int blocks, int rotations) {
  extern __shared__ __align__(128) std::uint16_t matrices[];
  __shared__ ChannelScratch<kWarps> scratch;
  const bool key = side == Side::key;
  const SideEncode& how = key ? spec.key : spec.value;
  const int own = static_cast<int>(blockIdx.x) % rotations;
  split_matrix<kBf16>(how.rotation.matrix + own * kFastDim * kFastDim, key, matrices);
  publish_matrix();
  __syncthreads();
  const auto shared = shared_address(matrices);

  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const int heads = cache.kv_heads / rotations;
  const std::int64_t total = std::int64_t{blocks} * heads * cache.batch;
  const int step = static_cast<int>(gridDim.x) / rotations;
  // The next block's tokens are on their way while a block is quantized.
  std::int64_t index = static_cast<int>(blockIdx.x) / rotations;
  FastTask task;
  Operands operands;
  const auto advance = [&] {
    for (; index < total; index += step) {
      const int block = static_cast<int>(index % blocks);
      const int head = static_cast<int>(index / blocks % heads) + own * heads;
      const int sequence = static_cast<int>(index / blocks / heads);
      if (!find_task<kWarps>(cache, source, side, sequence, head, block, task)) continue;
      load_operands(operands, task.rows, lane);
      index += step;
      return true;
    }
    return false;
  };
  bool more = advance();
  while (more) {
    Tile tile;
    rotate_tile<kBf16>(tile, operands, shared);
    const float factor = 1.0f / Split<kBf16>::scale;
    const FastJob job = make_fast_job(cache, spec, side, task, factor, factor * factor);
    more = advance();
    if (!key) {
      encode_tokens<false, true>(job, tile, warp, lane);
      continue;
    }
    zero_padding<kWarps>(job);
    if constexpr (kChannelKeys) {
      encode_channels<true>(job, tile, warp, lane, scratch);
    } else {
      encode_tokens<true, true>(job, tile, warp, lane);
    }
  }
}

template <bool kBf16, bool kChannelKeys>
void launch(const CacheView& cache, const EncodeSpec& spec, const TokenSource& source, Side side,
            int max_tokens, Stream stream) {
  const Rotation& rotation = (side == Side::key ? spec.key : spec.value).rotation;
  const int rotations = rotation.per_head ? cache.kv_heads : 1;
  const int blocks = (max_tokens + kWarps * kTile - 1) / (kWarps * kTile);
  const std::int64_t each = std::int64_t{blocks} * cache.batch * (cache.kv_heads / rotations);
  if (each == 0) return;
  const int bytes = Split<kBf16>::parts * kMatrixBytes;
  const auto kernel = dense_kernel<kBf16, kChannelKeys>;
  KVLAB_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  // Two thread blocks a multiprocessor hold their matrices.
  const int room = 2 * device().multiprocessors / rotations;
  const int resident = room < 1 ? 1 : room;
  const int grid = rotations * static_cast<int>(each < resident ? each : resident);
  kernel<<<grid, 32 * kWarps, bytes, stream>>>(cache, spec, source, side, blocks, rotations);
  KVLAB_CUDA(cudaGetLastError());
}

template <bool kBf16>
void dispatch(const CacheView& cache, const EncodeSpec& spec, const TokenSource& source, Side side,
              int max_tokens, Stream stream) {
  if (side == Side::key && cache.format.key.axis == Axis::channel) {
    return launch<kBf16, true>(cache, spec, source, side, max_tokens, stream);
  }
  return launch<kBf16, false>(cache, spec, source, side, max_tokens, stream);
}

}  // namespace

bool dense_products() {
  // As attention does, this variable keeps to what compute capability 8.0 has.
  const char* path = std::getenv("KVLAB_CUDA_PATH");
  return device().major == 9 && !(path && std::strcmp(path, "sm_90") != 0);
}

void encode_dense(const CacheView& cache, const EncodeSpec& spec, const TokenSource& source,
                  Side side, int max_tokens, Stream stream) {
  if (source.type == Type::bf16)
    return dispatch<true>(cache, spec, source, side, max_tokens, stream);
  return dispatch<false>(cache, spec, source, side, max_tokens, stream);
}

}  // namespace kvlab::kernels::cuda
