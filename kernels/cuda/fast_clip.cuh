#pragma once

#include "fast_tile.cuh"

/// Thresholds of tokens that are clipped at a place in the order of their magnitudes, from a tile
/// by tokens.
namespace kvlab::kernels::cuda {

/// The upper 16 bits of the lane's magnitudes of a row, two a word, under a bit that differences
/// borrow from.
template <int kRow>
struct Magnitudes {
  static constexpr int kWords = 2 * kFragments;
  static constexpr int kUnit = 255;  // of `reach`
  std::uint32_t pair[kWords];

  __device__ __forceinline__ explicit Magnitudes(const Tile& tile) {
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      const std::uint32_t upper = __byte_perm(bits_of(tile.at(i / 2, i % 2, kRow, 0)),
                                              bits_of(tile.at(i / 2, i % 2, kRow, 1)), 0x7632);
      pair[i] = upper | 0x80008000u;
    }
  }

  /// The largest of the quad.
  __device__ __forceinline__ unsigned largest() const {
    std::uint32_t top = pair[0];
#pragma unroll
    for (int i = 1; i < kWords; ++i) top = __vmaxu2(top, pair[i]);
    top = __vmaxu2(top, __shfl_xor_sync(kAllLanes, top, 1));
    top = __vmaxu2(top, __shfl_xor_sync(kAllLanes, top, 2));
    return max(top >> 16, top & 0xffffu) & 0x7fffu;
  }

  /// kUnit times the number of those of the quad that reach the bound: bytes of ones where one
  /// does, added up by a product.
  __device__ __forceinline__ int reach(unsigned bound) const {
    const std::uint32_t both = bound * 0x00010001u;
    int sums[4] = {};
#pragma unroll
    for (int i = 0; i < kWords; i += 8) {
      std::uint32_t bytes[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        asm("prmt.b32 %0, %1, %2, 0xfdb9;"  // the signs of four halves
            : "=r"(bytes[j])
            : "r"(pair[i + 2 * j] - both), "r"(pair[i + 2 * j + 1] - both));
      }
      mma_u8s8(sums, bytes[0], bytes[1], bytes[2], bytes[3], 0x01010101u, 0x01010101u);
    }
    return sums[0] + sums[2];
  }
};

/// The magnitude at place `index` of a row in ascending order, exactly.
template <int kRow>
__device__ __forceinline__ float order_statistic_of_row(const Tile& tile, int index) {
  using M = Magnitudes<kRow>;
  constexpr std::uint32_t kSize = 0x7fffffffu;       // a magnitude's bits
  const int wanted = (kFastDim - index) * M::kUnit;  // so many are as large, or larger
  // By bisection over the upper 16 bits, until all or one of those between the bounds are wanted:
  // `wanted` or more reach low, fewer reach high.
  unsigned low = 0;
  unsigned high;
  int reach_low = kFastDim * M::kUnit;
  int reach_high = 0;
  {
    const M magnitudes(tile);
    high = magnitudes.largest() + 1;
    unsigned down = 128;  // the first guess is an octave below, the next two, four, …
    while (__any_sync(kAllLanes,
                      reach_low > wanted && reach_high + M::kUnit < wanted && high - low > 1)) {
      const unsigned middle = max((low + high) / 2, high - min(high, down));
      const int reach = magnitudes.reach(middle);
      if (reach >= wanted) {
        low = middle, reach_low = reach;
      } else {
        high = middle, reach_high = reach, down *= 2;
      }
    }
  }
  // So it is the least from low on, or the largest below high: a maximum of differences either way,
  // which wrap for numbers beyond the bound. Doubled, numbers lose their sign.
  const bool takes_least = reach_low == wanted;
  const int sign = takes_least ? -1 : 1;
  std::uint32_t from = takes_least ? (low << 16) - 1 : 0u - (high << 16);
  for (;;) {
    auto twice = static_cast<std::uint32_t>(2 * sign);
    // Products anew each time: held in registers they would be too many.
    asm volatile("" : "+r"(twice));
    const auto size = [&](int i) { return bits_of(tile.at(i / 4, i / 2 % 2, kRow, i % 2)); };
    std::uint32_t top = 0;
#pragma unroll
    for (int i = 0; i < 4 * kFragments; i += 2) {
      top = __vimax3_u32(top, size(i) * twice + 2 * from, size(i + 1) * twice + 2 * from);
    }
    top = max(top, __shfl_xor_sync(kAllLanes, top, 1));
    top = max(top, __shfl_xor_sync(kAllLanes, top, 2));
    const std::uint32_t found = (static_cast<std::uint32_t>(sign) * (top / 2 - from)) & kSize;
    if (!__any_sync(kAllLanes, !takes_least && reach_high + M::kUnit < wanted))
      return float_of(found);
    // Three or more with the same upper bits: the next largest, or the same again until other rows
    // are done.
    int reach = 0;
#pragma unroll
    for (int i = 0; i < 4 * kFragments; ++i) reach += (size(i) & kSize) >= found;
    reach += __shfl_xor_sync(kAllLanes, reach, 1);
    reach += __shfl_xor_sync(kAllLanes, reach, 2);
    reach_high = max(reach_high, reach * M::kUnit);
    if (!takes_least && reach_high < wanted) from = 0u - found;
  }
}

/// Clamps the lane's tokens.
__device__ __forceinline__ void clamp_tokens(Tile& tile, const float (&threshold)[2]) {
#pragma unroll
  for (int i = 0; i < 8 * kFragments; ++i) {
    tile.x[i] = least(most(tile.x[i], -threshold[i / 2 % 2]), threshold[i / 2 % 2]);
  }
}

}  // namespace kvlab::kernels::cuda
