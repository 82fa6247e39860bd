#pragma once

#include "fast_norms.cuh"

/// Keys whose groups run along tokens, from a tile by channels: a lane then has 16 tokens of each
/// of its channels, and ranges need no more than its quad.
namespace kvlab::kernels::cuda {

/// Shared memory of kWarps warps that have a block.
template <int kWarps>
struct ChannelScratch {
  static constexpr int tokens = 16 * kWarps;
  float factor[tokens];      // what a token's numbers are to be multiplied by, or its norm
  float squares[4][tokens];  // sums of a warp's channels
  // Where a group is longer than a tile: the warpgroups' ranges.
  float2 ranges[kWarps == 8 ? 2 : 1][kFastDim];
};

/// What a team of warps does together.
struct Meeting {
  int barrier;
  int threads;

  __device__ __forceinline__ void operator()() const {
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
  }
};

/// A block's keys: which of its tokens the step stores, and whether it is the first to touch it.
struct ChannelBlock {
  std::uint8_t* block;
  int from, to;
  bool fresh;

  __device__ __forceinline__ RowPlace place(int token) const {
    const bool there = token >= from && token < to;
    return {block, token, there, token >= from && (fresh || there)};
  }
};

/// Norms of rotated tokens: each warp sums its channels' squares, then two lanes of a quad make and
/// store the norms of the warp's own 16 tokens. Between barriers.
template <int kWarps>
__device__ __forceinline__ void store_norms_of_tile(const FastJob& job, const Tile& tile,
                                                    const ChannelBlock& to, int thread,
                                                    const Meeting& meet,
                                                    ChannelScratch<kWarps>& scratch) {
  const int lane = thread % 32;
  const int warp = thread / 32;
  float sums[16];
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    sums[i] = 0.0f;
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const float x = tile.of_channel(c, i / 2, i % 2);
      sums[i] += x * x;
    }
#pragma unroll
    for (int step = 4; step < 32; step *= 2) sums[i] += __shfl_xor_sync(kAllLanes, sums[i], step);
  }
  const int first = warp / 4 * kStageTokens;
  if (lane < 4) {
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      scratch.squares[warp % 4][first + i / 2 * 8 + 2 * lane + i % 2] = sums[i];
    }
  }
  meet();
  const int token = warp * kTile + lane / 4 + 8 * (lane % 2);
  float sum = 0.0f;
#pragma unroll
  for (int w = 0; w < 4; ++w) sum += scratch.squares[w][token];
  const float norm = rounded_norm(job.format, root_fast(sum * job.factor_square));
  const float factor = store_norm<true>(job, to.place(token), norm, lane);
  if (lane % 4 < 2) scratch.factor[token] = factor;
  meet();
}

/// The tile's words of codes: of tokens 2t + g % 2 and 8 later of each 16, of the eight channels
/// that the lane and the one 4 apart have.
__device__ __forceinline__ void store_channel_codes(const Tile& tile, std::uint8_t* codes,
                                                    const bool (&writes)[2], int warp, int lane) {
  std::uint32_t
      halves[4];  // of each 16 tokens: token 2t, then 2t + 1, with the lane's four channels
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    halves[k] = 0;
#pragma unroll
    for (int place = 3; place >= 0; --place) {
      const int i = place / 2 * 2;
      const int j = 2 * k + place % 2;
      halves[k] =
          halves[k] * 4 + code_bytes(tile.of_channel(i, j, 0), tile.of_channel(i + 1, j, 0),
                                     tile.of_channel(i, j, 1), tile.of_channel(i + 1, j, 1));
    }
  }
  const int g = lane / 4;
  const bool upper = g % 2;
  const unsigned own = upper ? 0x7632u : 0x5410u;
  const unsigned other = upper ? 0x5410u : 0x7632u;
  auto* to =
      reinterpret_cast<std::uint32_t*>(codes + (4 * (2 * (lane % 4) + g % 2) + warp) * 16) + g / 2;
#pragma unroll
  for (int k = 0; k < 4; k += 2) {
    const std::uint32_t kept = __byte_perm(halves[k], halves[k + 1], own);
    const std::uint32_t got =
        __shfl_xor_sync(kAllLanes, __byte_perm(halves[k], halves[k + 1], other), 4);
    if (!writes[k / 2]) continue;
    to[k * (tile_bytes(kFastDim, 2) / 4)] = __byte_perm(kept, got, upper ? 0x1504u : 0x5140u);
    to[(k + 1) * (tile_bytes(kFastDim, 2) / 4)] = __byte_perm(kept, got, upper ? 0x3726u : 0x7362u);
  }
}

/// Parameters and codes of a tile by channels. `normed`: scratch.factor has the tokens' factors.
template <bool kRotated, int kWarps>
__device__ __forceinline__ void encode_channels(const FastJob& job, Tile& tile,
                                                const ChannelBlock& to, bool normed, int thread,
                                                const Meeting& meet,
                                                ChannelScratch<kWarps>& scratch) {
  const int lane = thread % 32;
  const int warp = thread / 32 % 4;
  const int group_of_warps = thread / 128;
  const int t = lane % 4;
  const int g = lane / 4;
  if (normed) {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float2 two = *reinterpret_cast<const float2*>(
          scratch.factor + group_of_warps * kStageTokens + 8 * j + 2 * t);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int l = 0; l < 2; ++l) {
          float& x = tile.of_channel(i, j, l);
          const float by = l ? two.y : two.x;
          x = kRotated ? multiply(x, by) : without_norm(job, x, by);
        }
      }
    }
  }
  const int channel = 32 * (g / 2) + 8 * warp + 4 * (g % 2) + t;
  TwoRanges range = two_ranges([&](auto& found) { gather_channels(tile, lane, found); });
  const int group = job.stored.group;
  if (group > 32) {
    float lo = least(range.lo[0], range.lo[1]);
    float hi = most(range.hi[0], range.hi[1]);
    if constexpr (kWarps == 8) {
      scratch.ranges[group_of_warps][channel] = make_float2(lo, hi);
      meet();
      const float2 others = scratch.ranges[1 - group_of_warps][channel];
      lo = least(lo, others.x);
      hi = most(hi, others.y);
    }
    range.lo[0] = range.lo[1] = lo;
    range.hi[0] = range.hi[1] = hi;
  }
  const float most_code = most_code_of(job);
  const float factor = normed ? 1.0f : job.factor;
  Quantizer of[2][4];
  bool keeps = true;
  bool writes[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int token = group_of_warps * kStageTokens + 32 * half;
    const RowPlace place = to.place(token);
    const Quantizer mine =
        store_group<kRotated>(job, place, token / group * kFastDim + channel, token % group == 0,
                              range.lo[half], range.hi[half], factor);
    writes[half] = place.writes;
    keeps &= keeps_codes<kRotated>(mine, most_code, range.lo[half], range.hi[half]);
#pragma unroll
    for (int i = 0; i < 4; ++i) of[half][i] = from_lane(mine, lane - t + i);
  }
  make_code_numbers<kRotated>(tile, keeps, most_code,
                              [&of](int i) { return of[i / 16 % 2][i / 32 * 2 + i / 2 % 2]; });
  store_channel_codes(tile,
                      to.block + job.at.key_codes +
                          group_of_warps * (kStageTokens / kTile) * tile_bytes(kFastDim, 2),
                      writes, warp, lane);
}

}  // namespace kvlab::kernels::cuda
