#include "check.h"
#include "encode_fast.cuh"
#include "fast_params.cuh"
#include "kvlab/kernels/cuda.h"
#include "zero_fill.cuh"

namespace kvlab::kernels::cuda {
namespace {

/// What the tile's numbers are to be multiplied by: 1/√d of a rotation and the token's norm, which
/// is stored.
template <bool kHadamard>
__device__ __forceinline__ void token_factors(const FastJob& job, const Tile& tile, int first_token,
                                              int lane, float (&factor)[2]) {
  factor[0] = factor[1] = kHadamard ? inverse_root(kFastDim) : 1.0f;
  if (job.side == Side::value || job.spec.scale == TokenScale::none) return;
  const Format& format = job.cache.format;
  float sums[2];
  square_sums(tile, sums);
  const int r = lane % 2;
  const int token = first_token + lane / 4 + 8 * r;
  // The numbers in the tile are √d times the rotated ones, which have the token's norm.
  const float norm = stored_scale(sqrtf((r ? sums[1] : sums[0]) * (1.0f / kFastDim)),
                                  format.norm_type, format.norm_inverse);
  if (lane % 4 < 2) {
    store_number(job.block + job.at.norm, norm_index(token), format.norm_type,
                 token < job.count ? norm : 0.0f);
  }
  const float own = format.norm_inverse ? factor[0] * norm : factor[0] / norm;
  factor[0] = __shfl_sync(kAllLanes, own, lane / 4 * 4);
  factor[1] = __shfl_sync(kAllLanes, own, lane / 4 * 4 + 1);
}

__device__ __forceinline__ void store_codes(const FastJob& job, int warp, int lane,
                                            const uint4& words) {
  std::uint8_t* codes = job.block + sections_of(job.at, job.side).codes;
  reinterpret_cast<uint4*>(codes + warp * tile_bytes(kFastDim, 2))[lane] = words;
}

template <bool kKey, bool kHadamard, int kGroups>
__device__ __forceinline__ void encode_token_tile(const FastJob& job, Tile& tile, int warp,
                                                  int lane) {
  float factor[2];
  token_factors<kHadamard>(job, tile, warp * kTile, lane, factor);
  const TokenGroups<kGroups, kHadamard> groups(job, tile, warp * kTile, lane, factor);
  const auto most_code = static_cast<float>(largest_code(job.spec.grid));
  store_codes(job, warp, lane, packed<kKey, kHadamard>(tile, most_code, groups));
}

template <bool kKey, bool kHadamard, bool kBf16>
__device__ __forceinline__ void encode_token_side(const FastJob& job, const Rows& rows, int warp,
                                                  int lane) {
  Tile tile;
  if constexpr (kKey) {
    load_keys<kBf16, kHadamard>(tile, rows, lane);
  } else {
    load_values<kBf16, kHadamard>(tile, rows, lane);
  }
  if (job.format.group == kFastDim) {
    encode_token_tile<kKey, kHadamard, 1>(job, tile, warp, lane);
  } else {
    encode_token_tile<kKey, kHadamard, 4>(job, tile, warp, lane);
  }
}

template <bool kHadamard, bool kBf16, int kWarps>
__device__ __forceinline__ void encode_channel_keys(const FastJob& job, const Rows& rows, int warp,
                                                    int lane, ChannelScratch<kWarps>& scratch) {
  Tile tile;
  load_keys<kBf16, kHadamard>(tile, rows, lane);
  float factor[2];
  token_factors<kHadamard>(job, tile, warp * kTile, lane, factor);
  if constexpr (kHadamard) {
#pragma unroll
    for (int i = 0; i < 8 * kFragments; ++i) {
      float& x = tile.x[i / 8][i / 4 % 2][i % 4];
      x = multiply(x, factor[i / 2 % 2]);
    }
  }
  channel_ranges(tile, warp, lane, scratch);
  __syncthreads();
  store_channel_groups<kWarps, kHadamard>(job, scratch);
  __syncthreads();
  const Quantizer* of = scratch.of[warp * kTile / job.format.group];
  const int t = lane % 4;
  const auto quantizer = [of, t](int f, int j, int /*r*/, int l) {
    return of[32 * (f / 2) + 8 * t + 4 * (f % 2) + 2 * j + l];
  };
  const auto most_code = static_cast<float>(largest_code(job.spec.grid));
  store_codes(job, warp, lane, packed<true, kHadamard>(tile, most_code, quantizer));
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

  constexpr int held = kWarps * kTile;
  const int tokens = cache.tokens[sequence];
  const Span span = span_of(cache.rule, tokens, kAllTokens, side);
  const int first = block * held;
  const int longest = span.end > span.other_end ? span.end : span.other_end;
  if (first >= longest) return;
  const int count = span.end - first < 0 ? 0 : span.end - first < held ? span.end - first : held;

  const bool key = side == Side::key;
  const Layout at = layout_of(cache.format);
  const FastJob job{cache,
                    key ? cache.format.key : cache.format.value,
                    key ? spec.key : spec.value,
                    side,
                    at,
                    block_at(cache, at.bytes, sequence, head, block),
                    count};
  if (key) {
    const int norms = cache.format.norm == Norm::none ? 0 : held * size_of(cache.format.norm_type);
    zero_bytes(job.block, at.norm + norms, at.bytes);
  }

  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const auto* array = static_cast<const std::uint16_t*>(key ? source.key : source.value);
  Rows rows;
  for (int r = 0; r < 2; ++r) {
    const int token = warp * kTile + lane / 4 + 8 * r;
    rows.row[r] = array + sequence * source.batch_stride + head * source.head_stride +
                  (history_begin(cache, tokens) + first + token) * source.token_stride;
    if (token >= count) rows.row[r] = nullptr;
  }
  const bool rotated = job.spec.rotation.kind == Rotation::Kind::hadamard;
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

bool fits_side(const Format& format, const SideFormat& side, const SideEncode& spec) {
  if (format.dim != kFastDim || side.bits != 2 || side.zero == Zero::codebook) return false;
  if (spec.clip != Clip::none || spec.center) return false;
  switch (spec.rotation.kind) {
    case Rotation::Kind::hadamard:
      return spec.scale == TokenScale::none || spec.scale == TokenScale::l2_head;
    case Rotation::Kind::none:
      // Codes of numbers as they came must be exact: Quantizer has that for half-even, a zero and
      // 16-bit scales.
      return side.zero == Zero::value && size_of(side.params) == 2 && !spec.grid.half_up &&
             spec.scale == TokenScale::none;
    case Rotation::Kind::dense:
      break;
  }
  return false;
}

bool loads_words(const void* array, const TokenSource& source) {
  return reinterpret_cast<std::uintptr_t>(array) % 16 == 0 && source.batch_stride % 8 == 0 &&
         source.head_stride % 8 == 0 && source.token_stride % 8 == 0;
}

template <bool kBf16, bool kChannelKeys, int kWarps>
void launch(const CacheView& cache, const EncodeSpec& spec, const TokenSource& source,
            FastSides sides, int max_tokens, Stream stream) {
  const int blocks = (max_tokens + kWarps * kTile - 1) / (kWarps * kTile);
  const int count = sides.key && sides.value ? 2 : 1;
  const std::int64_t total = std::int64_t{blocks} * count * cache.kv_heads * cache.batch;
  if (total == 0) return;
  fast_kernel<kBf16, kChannelKeys, kWarps>
      <<<static_cast<unsigned>(total), 32 * kWarps, 0, stream>>>(cache, spec, source, blocks,
                                                                 sides.key ? 0 : 1, count);
  KVLAB_CUDA(cudaGetLastError());
}

template <bool kBf16>
void dispatch(const CacheView& cache, const EncodeSpec& spec, const TokenSource& source,
              FastSides sides, int max_tokens, Stream stream) {
  if (block_tokens(cache.format) == 128) {
    return launch<kBf16, true, 8>(cache, spec, source, sides, max_tokens, stream);
  }
  if (cache.format.key.axis == Axis::channel) {
    return launch<kBf16, true, 4>(cache, spec, source, sides, max_tokens, stream);
  }
  return launch<kBf16, false, 4>(cache, spec, source, sides, max_tokens, stream);
}

}  // namespace

FastSides fast_sides(const CacheView& cache, const EncodeSpec& spec, const TokenSource& source,
                     int step) {
  if (step != kAllTokens || !source.key || !source.value || source.type == Type::f32) return {};
  const Format& format = cache.format;
  return {fits_side(format, format.key, spec.key) && loads_words(source.key, source),
          fits_side(format, format.value, spec.value) && format.value.axis == Axis::token &&
              loads_words(source.value, source)};
}

void encode_fast(const CacheView& cache, const EncodeSpec& spec, const TokenSource& source,
                 FastSides sides, int max_tokens, Stream stream) {
  if (source.type == Type::bf16)
    return dispatch<true>(cache, spec, source, sides, max_tokens, stream);
  return dispatch<false>(cache, spec, source, sides, max_tokens, stream);
}

}  // namespace kvlab::kernels::cuda
