#pragma once

#include <climits>

#include "fast_tile.cuh"

/// Least and largest numbers of a tile's groups.
namespace kvlab::kernels::cuda {

/// By the bits of floats as integers, three operands an instruction. Right where there are numbers
/// of both signs and no NaN: integers order negative floats the wrong way round.
struct BitRange {
  int top = INT_MIN;
  unsigned bottom = 0;

  __device__ __forceinline__ void add(float a, float b) {
    top = __vimax3_s32(top, static_cast<int>(bits_of(a)), static_cast<int>(bits_of(b)));
    bottom = __vimax3_u32(bottom, bits_of(a), bits_of(b));
  }
  __device__ __forceinline__ void merge(const BitRange& other) {
    top = max(top, other.top);
    bottom = max(bottom, other.bottom);
  }
  __device__ __forceinline__ BitRange from_lane(int step) const {
    return {__shfl_xor_sync(kAllLanes, top, step), __shfl_xor_sync(kAllLanes, bottom, step)};
  }
  __device__ __forceinline__ bool right() const {
    return top >= 0 && top <= 0x7f800000 && bottom >= 0x80000000u && bottom <= 0xff800000u;
  }
  __device__ __forceinline__ float lo() const { return __uint_as_float(bottom); }
  __device__ __forceinline__ float hi() const { return __int_as_float(top); }
};

/// Of any numbers; NaN if one is.
struct FloatRange {
  float least_yet = INFINITY;
  float most_yet = -INFINITY;

  __device__ __forceinline__ void add(float a, float b) {
    least_yet = least(least_yet, least(a, b));
    most_yet = most(most_yet, most(a, b));
  }
  __device__ __forceinline__ void merge(const FloatRange& other) {
    least_yet = least(least_yet, other.least_yet);
    most_yet = most(most_yet, other.most_yet);
  }
  __device__ __forceinline__ FloatRange from_lane(int step) const {
    return {__shfl_xor_sync(kAllLanes, least_yet, step),
            __shfl_xor_sync(kAllLanes, most_yet, step)};
  }
  __device__ __forceinline__ float lo() const { return least_yet; }
  __device__ __forceinline__ float hi() const { return most_yet; }
};

/// Of 2·kHalf ranges a lane keeps half and merges into them the same of the lane `step` apart,
/// which keeps the other half.
template <int kHalf, class Range, int kSize>
__device__ __forceinline__ void merge_halves(Range (&ranges)[kSize], int step, int lane) {
  const bool upper = lane & step;
#pragma unroll
  for (int i = 0; i < kHalf; ++i) {
    const Range sent = upper ? ranges[i] : ranges[i + kHalf];
    ranges[i] = upper ? ranges[i + kHalf] : ranges[i];
    ranges[i].merge(sent.from_lane(step));
  }
}

/// Two groups' ranges that a lane ends with.
struct TwoRanges {
  float lo[2], hi[2];
};

/// `gather(ranges)`: puts the ranges of the lane's groups into ranges[2], of either kind.
template <class Gather>
__device__ __forceinline__ TwoRanges two_ranges(const Gather& gather) {
  TwoRanges found;
  const auto take = [&found](const auto& ranges) {
#pragma unroll
    for (int i = 0; i < 2; ++i) found.lo[i] = ranges[i].lo(), found.hi[i] = ranges[i].hi();
  };
  BitRange fast[2];
  gather(fast);
  if (__all_sync(kAllLanes, fast[0].right() && fast[1].right())) {
    take(fast);
  } else {
    FloatRange slow[2];
    gather(slow);
    take(slow);
  }
  return found;
}

/// Of the whole tokens of a tile: lane 4g + t ends with row t % 2, twice.
template <class Range>
__device__ __forceinline__ void gather_rows(const Tile& tile, int lane, Range (&found)[2]) {
  Range rows[2];
#pragma unroll
  for (int i = 0; i < 4 * kFragments; ++i) {
    const int r = i % 2;
    rows[r].add(tile.at(i / 4, i / 2 % 2, r, 0), tile.at(i / 4, i / 2 % 2, r, 1));
  }
  merge_halves<1>(rows, 1, lane);
  rows[0].merge(rows[0].from_lane(2));
  found[0] = found[1] = rows[0];
}

/// Of pieces of 32 channels: lane 4g + t ends with piece t of both rows.
template <class Range>
__device__ __forceinline__ void gather_pieces(const Tile& tile, int lane, Range (&found)[2]) {
  Range pieces[8];
#pragma unroll
  for (int i = 0; i < 4 * kFragments; ++i) {
    const int f = i / 4;
    const int r = i % 2;
    pieces[f / 2 * 2 + r].add(tile.at(f, i / 2 % 2, r, 0), tile.at(f, i / 2 % 2, r, 1));
  }
  merge_halves<4>(pieces, 2, lane);
  merge_halves<2>(pieces, 1, lane);
  found[0] = pieces[0];
  found[1] = pieces[1];
}

/// Of a tile by channels, of 32 tokens each: lane 4g + t ends with both of its quad's row t.
template <class Range>
__device__ __forceinline__ void gather_channels(const Tile& tile, int lane, Range (&found)[2]) {
  Range groups[8];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      groups[2 * i + j / 4].add(tile.of_channel(i, j, 0), tile.of_channel(i, j, 1));
    }
  }
  merge_halves<4>(groups, 2, lane);
  merge_halves<2>(groups, 1, lane);
  found[0] = groups[0];
  found[1] = groups[1];
}

}  // namespace kvlab::kernels::cuda
