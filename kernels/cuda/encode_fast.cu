#include "check.h"
#include "encode_fast.cuh"
#include "fast_store.cuh"
#include "kvlab/kernels/cuda.h"

namespace kvlab::kernels::cuda {
namespace {

template <bool kKey, bool kHadamard, bool kBf16>
__device__ __forceinline__ void encode_token_side(const FastJob& job, const Rows& rows, int warp,
                                                  int lane) {
  Tile tile;
  if constexpr (kKey) {
    load_keys<kBf16, kHadamard>(tile, rows, lane);
  } else {
    load_values<kBf16, kHadamard>(tile, rows, lane);
  }
  encode_tokens<kKey, kHadamard>(job, tile, warp, lane);
}

template <bool kHadamard, bool kBf16, int kWarps>
__device__ __forceinline__ void encode_channel_keys(const FastJob& job, const Rows& rows, int warp,
                                                    int lane, ChannelScratch<kWarps>& scratch) {
  Tile tile;
  load_keys<kBf16, kHadamard>(tile, rows, lane);
  encode_channels<kHadamard>(job, tile, warp, lane, scratch);
}

/// A thread block has one side of a block of the cache, a warp a tile.
template <bool kBf16, bool kChannelKeys, int kWarps>
__global__ void __launch_bounds__(32 * kWarps, 16 / kWarps)
    fast_kernel(const __grid_constant__ CacheView cache, const __grid_constant__ EncodeSpec spec,
                const __grid_constant__ TokenSource source, int blocks, int first_side, int sides) {
  std::int64_t index = blockIdx.x;
  const auto next = [&](int count) {
    const int digit = static_cast<int>(index % count);
    index /= count;
    return digit;
  };
  const int block = next(blocks);
  const Side side = next(sides) + first_side == 0 ? Side::key : Side::value;
  const int head = next(cache.kv_heads);
  const int sequence = static_cast<int>(index);

  const bool rotated =
      (side == Side::key ? spec.key : spec.value).rotation.kind == Rotation::Kind::hadamard;
  FastTask task;
  if (!find_task<kWarps>(cache, source, side, sequence, head, block, task)) return;
  // Signs instead of the rotation's numbers leave √d.
  const FastJob job =
      make_fast_job(cache, spec, side, task, rotated ? inverse_root(kFastDim) : 1.0f,
                    rotated ? 1.0f / kFastDim : 1.0f);
  const bool key = side == Side::key;
  if (key) zero_padding<kWarps>(job);
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const Rows rows = task.rows;
  if (!key) {
    if (rotated) return encode_token_side<false, true, kBf16>(job, rows, warp, lane);
    return encode_token_side<false, false, kBf16>(job, rows, warp, lane);
  }
  if constexpr (kChannelKeys) {
    __shared__ ChannelScratch<kWarps> scratch;
    if (rotated) return encode_channel_keys<true, kBf16, kWarps>(job, rows, warp, lane, scratch);
    return encode_channel_keys<false, kBf16, kWarps>(job, rows, warp, lane, scratch);
  } else {
    if (rotated) return encode_token_side<true, true, kBf16>(job, rows, warp, lane);
    return encode_token_side<true, false, kBf16>(job, rows, warp, lane);
  }
}

Path path_of(const Format& format, const SideFormat& side, const SideEncode& spec) {
  if (format.dim != kFastDim || side.bits != 2 || side.zero == Zero::codebook) return Path::general;
  if (spec.clip != Clip::none || spec.center) return Path::general;
  const bool own_norm = spec.scale == TokenScale::none || spec.scale == TokenScale::l2_head;
  switch (spec.rotation.kind) {
    case Rotation::Kind::hadamard:
      return own_norm ? Path::light : Path::general;
    case Rotation::Kind::none: {
      // Codes of numbers as they came must be exact: Quantizer has that for half-even, a zero and
      // 16-bit scales.
      const bool exact = side.zero == Zero::value && size_of(side.params) == 2 &&
                         !spec.grid.half_up && spec.scale == TokenScale::none;
      return exact ? Path::light : Path::general;
    }
    case Rotation::Kind::dense: {
      // Before the rotation a norm is another one, as the matrix may be far from orthogonal.
      const bool fits = own_norm && !spec.scale_first && block_tokens(format) == 64;
      return fits && dense_products() ? Path::dense : Path::general;
    }
  }
  return Path::general;
}

bool loads_words(const void* array, const TokenSource& source) {
  return reinterpret_cast<std::uintptr_t>(array) % 16 == 0 && source.batch_stride % 8 == 0 &&
         source.head_stride % 8 == 0 && source.token_stride % 8 == 0;
}

template <bool kBf16, bool kChannelKeys, int kWarps>
void launch(const CacheView& cache, const EncodeSpec& spec, const TokenSource& source, Paths paths,
            int max_tokens, Stream stream) {
  const int blocks = (max_tokens + kWarps * kTile - 1) / (kWarps * kTile);
  const bool key = paths.key == Path::light;
  const int count = key && paths.value == Path::light ? 2 : 1;
  const std::int64_t total = std::int64_t{blocks} * count * cache.kv_heads * cache.batch;
  if (total == 0) return;
  fast_kernel<kBf16, kChannelKeys, kWarps>
      <<<static_cast<unsigned>(total), 32 * kWarps, 0, stream>>>(cache, spec, source, blocks,
                                                                 key ? 0 : 1, count);
  KVLAB_CUDA(cudaGetLastError());
}

template <bool kBf16>
void dispatch(const CacheView& cache, const EncodeSpec& spec, const TokenSource& source,
              Paths paths, int max_tokens, Stream stream) {
  if (block_tokens(cache.format) == 128) {
    return launch<kBf16, true, 8>(cache, spec, source, paths, max_tokens, stream);
  }
  if (cache.format.key.axis == Axis::channel) {
    return launch<kBf16, true, 4>(cache, spec, source, paths, max_tokens, stream);
  }
  return launch<kBf16, false, 4>(cache, spec, source, paths, max_tokens, stream);
}

}  // namespace

Paths paths_of(const CacheView& cache, const EncodeSpec& spec, const TokenSource& source,
               int step) {
  if (step != kAllTokens || !source.key || !source.value || source.type == Type::f32) return {};
  const Format& format = cache.format;
  Paths paths;
  if (loads_words(source.key, source)) paths.key = path_of(format, format.key, spec.key);
  if (loads_words(source.value, source) && format.value.axis == Axis::token) {
    paths.value = path_of(format, format.value, spec.value);
  }
  return paths;
}

void encode_light(const CacheView& cache, const EncodeSpec& spec, const TokenSource& source,
                  Paths paths, int max_tokens, Stream stream) {
  if (source.type == Type::bf16) {
    return dispatch<true>(cache, spec, source, paths, max_tokens, stream);
  }
  return dispatch<false>(cache, spec, source, paths, max_tokens, stream);
}

}  // namespace kvlab::kernels::cuda
