#pragma once

#include "encode_job.cuh"
#include "fast_tile.cuh"
#include "zero_fill.cuh"

/// Parameters of a tile's groups: ranges, what is stored, and the quantizers that follow.
namespace kvlab::kernels::cuda {

/// What the fast encoder knows of a side.
struct FastJob {
  const Format& format;
  const SideFormat& stored;
  const SideEncode& spec;
  Side side;
  Layout at;
  float factor;  // the tile's numbers times this are the rotated ones
  float factor_square;
};

__device__ __forceinline__ FastJob make_fast_job(const Format& format, const EncodeSpec& spec,
                                                 Side side, float factor, float factor_square) {
  const bool key = side == Side::key;
  return {format,
          key ? format.key : format.value,
          key ? spec.key : spec.value,
          side,
          layout_of(format),
          factor,
          factor_square};
}

/// Where a row of a tile is stored.
struct RowPlace {
  std::uint8_t* block;
  int token;    // of the block
  bool there;   // there is such a token; else zeros are stored
  bool writes;  // the place is the step's to write
};

/// One of two by value: chosen by address they would have to lie in memory.
__device__ __forceinline__ RowPlace chosen(const RowPlace (&places)[2], int r) {
  return {r ? places[1].block : places[0].block, r ? places[1].token : places[0].token,
          r ? places[1].there : places[0].there, r ? places[1].writes : places[0].writes};
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
  const float inverse = __fdividef(1.0f, params.scale);
  const float of_code = 1.0f / most_code;
  const float shift = grid.zero == Zero::value  ? -params.zero * inverse
                      : grid.zero == Zero::none ? static_cast<float>(symmetric_reach(grid.bits))
                                                : params.zero;
  return {factor * inverse * of_code, shift * of_code};
}

template <bool kRotated>
__device__ __forceinline__ Quantizer no_codes() {
  return {kRotated ? 0.0f : __uint_as_float(0x7f800000u), 0.0f};
}

/// store_group for a grid and a parameter type that may be constants.
template <bool kRotated>
__device__ __forceinline__ Quantizer store_group_of(const Grid& grid, Type type, bool zeros,
                                                    const FastJob& job, const RowPlace& place,
                                                    int index, bool stores, float lo, float hi,
                                                    float factor) {
  GroupParams params{0.0f, 0.0f, true};
  if (place.there) params = params_of(grid, multiply(lo, factor), multiply(hi, factor));
  if (stores && place.writes) {
    const Sections at = sections_of(job.at, job.side);
    store_number(place.block + at.scale, index, type, params.scale);
    if (zeros) store_number(place.block + at.zero, index, type, params.zero);
  }
  return place.there ? quantizer_of<kRotated>(grid, params, factor) : no_codes<kRotated>();
}

/// Parameters of a range of tile numbers, stored as number `index` (layout.h, param_index) of the
/// place's block if `stores`; zeros where there is no such token.
template <bool kRotated>
__device__ __forceinline__ Quantizer store_group(const FastJob& job, const RowPlace& place,
                                                 int index, bool stores, float lo, float hi,
                                                 float factor) {
  const Grid& grid = job.spec.grid;
  // The usual case as constants takes half the instructions.
  if (grid.zero == Zero::value && grid.params == Type::f16 && grid.range_ratio == 1.0f) {
    return store_group_of<kRotated>(Grid{}, Type::f16, true, job, place, index, stores, lo, hi,
                                    factor);
  }
  return store_group_of<kRotated>(grid, job.stored.params, stores_zero(job.stored), job, place,
                                  index, stores, lo, hi, factor);
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
  __device__ __forceinline__ TokenGroups(const FastJob& job, const Tile& tile,
                                         const RowPlace (&places)[2], int lane,
                                         const float (&factor)[2]) {
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
      const RowPlace place = chosen(places, r);
      const Quantizer mine =
          store_group<kRotated>(job, place, token_slot(place.token), t < 2, r ? lo[0][1] : lo[0][0],
                                r ? hi[0][1] : hi[0][0], r ? factor[1] : factor[0]);
      of[0][0] = from_lane(mine, quad);
      of[0][1] = from_lane(mine, quad + 1);
    } else {
      static_assert(kGroups == 4);
      if (job.stored.group == 64) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int p = i / 2 * 2;
          lo[p][i % 2] = lo[p + 1][i % 2] = least(lo[p][i % 2], lo[p + 1][i % 2]);
          hi[p][i % 2] = hi[p + 1][i % 2] = most(hi[p][i % 2], hi[p + 1][i % 2]);
        }
      }
      const int group = job.stored.group == 32 ? t : t / 2;
      const int held = block_tokens(job.format);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const auto own = [t, r](const float (&all)[4][2]) {
          return t < 2 ? (t == 0 ? all[0][r] : all[1][r]) : (t == 2 ? all[2][r] : all[3][r]);
        };
        const bool stores = job.stored.group == 32 || t % 2 == 0;
        const Quantizer mine = store_group<kRotated>(job, places[r], group * held + places[r].token,
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
  alignas(16) Quantizer of[kWarps / 2][kFastDim];
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

/// Parameters of the block's groups from the ranges of their tiles; all threads of kWarps warps,
/// between two barriers. `from`, `to`: tokens of the block that the step stores; `fresh`: what lies
/// behind them too, as zeros.
template <int kWarps, bool kRotated>
__device__ __forceinline__ void store_channel_groups(const FastJob& job, std::uint8_t* block,
                                                     int from, int to, bool fresh, int thread,
                                                     ChannelScratch<kWarps>& scratch) {
  const int shift = job.stored.group == 32 ? 1 : job.stored.group == 64 ? 2 : 3;  // of tiles
  for (int i = thread; i < (kWarps >> shift) * kFastDim; i += 32 * kWarps) {
    const int group = i / kFastDim;
    const int channel = i % kFastDim;
    float lo = scratch.lo[group << shift][channel];
    float hi = scratch.hi[group << shift][channel];
    for (int w = (group << shift) + 1; w < (group + 1) << shift; ++w) {
      lo = least(lo, scratch.lo[w][channel]);
      hi = most(hi, scratch.hi[w][channel]);
    }
    const int token = group * job.stored.group;
    const RowPlace place{block, token, token >= from && token < to,
                         token >= from && (fresh || token < to)};
    scratch.of[group][channel] = store_group<kRotated>(job, place, i, true, lo, hi, 1.0f);
  }
}

}  // namespace kvlab::kernels::cuda
