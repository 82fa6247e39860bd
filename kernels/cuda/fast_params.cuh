#pragma once

#include "encode_job.cuh"
#include "fast_tile.cuh"
#include "zero_fill.cuh"

/// Parameters of a tile's groups: ranges, what is stored, and the quantizers that follow.
namespace kvlab::kernels::cuda {

/// What a thread block of the fast encoder has: a block of the cache, one side of it.
struct FastJob {
  const CacheView& cache;
  const SideFormat& format;
  const SideEncode& spec;
  Side side;
  Layout at;
  std::uint8_t* block;
  int count;     // tokens of the block that are stored; what lies behind is zero
  float factor;  // the tile's numbers times this are the rotated ones
  float factor_square;
};

/// Where a block's tokens come from and go to.
struct FastTask {
  std::uint8_t* block;
  int count;
  Rows rows;
};

/// False where neither side has tokens in the block.
template <int kWarps>
__device__ __forceinline__ bool find_task(const CacheView& cache, const TokenSource& source,
                                          Side side, int sequence, int head, int block,
                                          FastTask& task) {
  constexpr int held = kWarps * kTile;
  const int tokens = cache.tokens[sequence];
  const Span span = span_of(cache.rule, tokens, kAllTokens, side);
  const int first = block * held;
  const int longest = span.end > span.other_end ? span.end : span.other_end;
  if (first >= longest) return false;
  const int left = span.end - first;
  task.count = left < 0 ? 0 : left < held ? left : held;
  task.block = block_at(cache, layout_of(cache.format).bytes, sequence, head, block);
  const auto* array =
      static_cast<const std::uint16_t*>(side == Side::key ? source.key : source.value);
  array += sequence * source.batch_stride + head * source.head_stride +
           (history_begin(cache, tokens) + first) * source.token_stride;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int token = threadIdx.x / 32 * kTile + threadIdx.x % 32 / 4 + 8 * r;
    task.rows.row[r] = token < task.count ? array + token * source.token_stride : nullptr;
  }
  return true;
}

__device__ __forceinline__ FastJob make_fast_job(const CacheView& cache, const EncodeSpec& spec,
                                                 Side side, const FastTask& task, float factor,
                                                 float factor_square) {
  const bool key = side == Side::key;
  return {cache,
          key ? cache.format.key : cache.format.value,
          key ? spec.key : spec.value,
          side,
          layout_of(cache.format),
          task.block,
          task.count,
          factor,
          factor_square};
}

/// Zeroes what lies behind the norms; the keys' thread block does it.
template <int kWarps>
__device__ __forceinline__ void zero_padding(const FastJob& job) {
  const Format& format = job.cache.format;
  const int norms = format.norm == Norm::none ? 0 : kWarps * kTile * size_of(format.norm_type);
  zero_bytes(job.block, job.at.norm + norms, job.at.bytes);
}

/// The quantizer of a group whose numbers are `factor` times those in the tile.
template <bool kRotated>
__device__ __forceinline__ Quantizer quantizer_of(const Grid& grid, const GroupParams& params,
                                                  float factor) {
  if constexpr (!kRotated)
    return {params.flat ? __uint_as_float(0x7f800000u) : params.scale, params.zero};
  const auto most_code = static_cast<float>(largest_code(grid));
  const bool empty = params.flat && !(grid.zero == Zero::offset && grid.integer_zero);
  if (empty && grid.zero != Zero::none) return {0.0f, 0.0f};
  const float shift = grid.zero == Zero::value  ? -params.zero / params.scale
                      : grid.zero == Zero::none ? static_cast<float>(symmetric_reach(grid.bits))
                                                : params.zero;
  return {factor / params.scale / most_code, shift / most_code};
}

template <bool kRotated>
__device__ __forceinline__ Quantizer no_codes() {
  return {kRotated ? 0.0f : __uint_as_float(0x7f800000u), 0.0f};
}

/// Parameters of a range of tile numbers, stored for a token and channel, or zero where there is no
/// such token.
template <bool kRotated>
__device__ __forceinline__ Quantizer store_group(const FastJob& job, int token, int channel,
                                                 bool stores, float lo, float hi, float factor) {
  if (token >= job.count) {
    if (stores) {
      const Sections at = sections_of(job.at, job.side);
      const int index = param_index(job.cache.format, job.format, token, channel);
      store_number(job.block + at.scale, index, job.format.params, 0.0f);
      if (stores_zero(job.format))
        store_number(job.block + at.zero, index, job.format.params, 0.0f);
    }
    return no_codes<kRotated>();
  }
  const GroupParams params = params_of(job.spec.grid, multiply(lo, factor), multiply(hi, factor));
  if (stores) {
    const Sections at = sections_of(job.at, job.side);
    const int index = param_index(job.cache.format, job.format, token, channel);
    store_number(job.block + at.scale, index, job.format.params, params.scale);
    if (stores_zero(job.format))
      store_number(job.block + at.zero, index, job.format.params, params.zero);
  }
  return quantizer_of<kRotated>(job.spec.grid, params, factor);
}

__device__ __forceinline__ Quantizer from_lane(const Quantizer& mine, int lane) {
  return {__shfl_sync(kAllLanes, mine.scale, lane), __shfl_sync(kAllLanes, mine.offset, lane)};
}

/// Groups along channels, kGroups pieces of a token with parameters of their own lanes: one, of the
/// whole token, or four of 32 channels, of which two may belong to one group.
template <int kGroups, bool kRotated>
struct TokenGroups {
  Quantizer of[kGroups][2];  // [piece][row]

  /// `factor[row]`: what the tile's numbers are to be multiplied by.
  __device__ __forceinline__ TokenGroups(const FastJob& job, const Tile& tile, int first_token,
                                         int lane, const float (&factor)[2]) {
    constexpr int per = kFragments / kGroups;
    float lo[kGroups][2];
    float hi[kGroups][2];
#pragma unroll
    for (int p = 0; p < kGroups; ++p) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        lo[p][r] = hi[p][r] = tile.x[p * per][0][2 * r];
#pragma unroll
        for (int f = p * per; f < (p + 1) * per; ++f) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const float x = tile.x[f][i / 2][2 * r + i % 2];
            lo[p][r] = least(lo[p][r], x);
            hi[p][r] = most(hi[p][r], x);
          }
        }
#pragma unroll
        for (int step = 1; step < 4; step *= 2) {
          lo[p][r] = least(lo[p][r], __shfl_xor_sync(kAllLanes, lo[p][r], step));
          hi[p][r] = most(hi[p][r], __shfl_xor_sync(kAllLanes, hi[p][r], step));
        }
      }
    }
    const int quad = lane / 4 * 4;
    const int t = lane % 4;
    if constexpr (kGroups == 1) {
      // Lanes 0 and 1 of a token's four have a row each.
      const int r = t % 2;
      const Quantizer mine = store_group<kRotated>(job, first_token + lane / 4 + 8 * r, 0, t < 2,
                                                   r ? lo[0][1] : lo[0][0], r ? hi[0][1] : hi[0][0],
                                                   r ? factor[1] : factor[0]);
      of[0][0] = from_lane(mine, quad);
      of[0][1] = from_lane(mine, quad + 1);
    } else {
      static_assert(kGroups == 4);
      if (job.format.group == 64) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int p = i / 2 * 2;
          lo[p][i % 2] = lo[p + 1][i % 2] = least(lo[p][i % 2], lo[p + 1][i % 2]);
          hi[p][i % 2] = hi[p + 1][i % 2] = most(hi[p][i % 2], hi[p + 1][i % 2]);
        }
      }
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const auto own = [t, r](const float (&all)[4][2]) {
          return t < 2 ? (t == 0 ? all[0][r] : all[1][r]) : (t == 2 ? all[2][r] : all[3][r]);
        };
        const bool stores = job.format.group == 32 || t % 2 == 0;
        const Quantizer mine = store_group<kRotated>(job, first_token + lane / 4 + 8 * r, 32 * t,
                                                     stores, own(lo), own(hi), factor[r]);
#pragma unroll
        for (int p = 0; p < 4; ++p) of[p][r] = from_lane(mine, quad + p);
      }
    }
  }

  __device__ __forceinline__ const Quantizer& operator()(int f, int /*j*/, int r, int /*l*/) const {
    return of[f / (kFragments / kGroups)][r];
  }
};

/// Shared memory where groups run along tokens: ranges of each tile's channels, then quantizers of
/// each group's.
template <int kWarps>
struct ChannelScratch {
  float lo[kWarps][kFastDim];
  float hi[kWarps][kFastDim];
  Quantizer of[kWarps / 2][kFastDim];
};

/// Of 2·kHalf ranges a lane keeps half and gets the same of the lane kHalf apart, which keeps the
/// other half.
template <int kHalf, int kSize>
__device__ __forceinline__ void merge_halves(float (&lo)[kSize], float (&hi)[kSize], int lane) {
  const bool upper = lane & kHalf;
#pragma unroll
  for (int i = 0; i < kHalf; ++i) {
    const float lo_sent = upper ? lo[i] : lo[i + kHalf];
    const float hi_sent = upper ? hi[i] : hi[i + kHalf];
    lo[i] = least(upper ? lo[i + kHalf] : lo[i], __shfl_xor_sync(kAllLanes, lo_sent, kHalf));
    hi[i] = most(upper ? hi[i + kHalf] : hi[i], __shfl_xor_sync(kAllLanes, hi_sent, kHalf));
  }
}

/// Ranges of the tile's channels over its tokens: lane 4g + t ends with the four channels of
/// fragment g.
template <int kWarps>
__device__ __forceinline__ void channel_ranges(const Tile& tile, int warp, int lane,
                                               ChannelScratch<kWarps>& scratch) {
  float lo[4 * kFragments];
  float hi[4 * kFragments];
#pragma unroll
  for (int i = 0; i < 4 * kFragments; ++i) {
    const float* x = tile.x[i / 4][i / 2 % 2] + i % 2;
    lo[i] = least(x[0], x[2]);
    hi[i] = most(x[0], x[2]);
  }
  merge_halves<16>(lo, hi, lane);
  merge_halves<8>(lo, hi, lane);
  merge_halves<4>(lo, hi, lane);
  const int g = lane / 4;
  const int channel = 32 * (g / 2) + 8 * (lane % 4) + 4 * (g % 2);
  *reinterpret_cast<float4*>(scratch.lo[warp] + channel) = make_float4(lo[0], lo[1], lo[2], lo[3]);
  *reinterpret_cast<float4*>(scratch.hi[warp] + channel) = make_float4(hi[0], hi[1], hi[2], hi[3]);
}

/// Parameters of the block's groups from the ranges of their tiles; all threads, between two
/// barriers.
template <int kWarps, bool kRotated>
__device__ __forceinline__ void store_channel_groups(const FastJob& job,
                                                     ChannelScratch<kWarps>& scratch) {
  const int tiles = job.format.group / kTile;
  for (int i = threadIdx.x; i < kWarps / tiles * kFastDim; i += 32 * kWarps) {
    const int group = i / kFastDim;
    const int channel = i % kFastDim;
    float lo = scratch.lo[group * tiles][channel];
    float hi = scratch.hi[group * tiles][channel];
    for (int w = group * tiles + 1; w < (group + 1) * tiles; ++w) {
      lo = least(lo, scratch.lo[w][channel]);
      hi = most(hi, scratch.hi[w][channel]);
    }
    scratch.of[group][channel] =
        store_group<kRotated>(job, group * job.format.group, channel, true, lo, hi, 1.0f);
  }
}

}  // namespace kvlab::kernels::cuda
