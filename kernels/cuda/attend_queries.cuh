#pragma once

#include "attend_tuned.cuh"

/// Queries as operands of the tuned attention.
namespace kvlab::kernels::cuda {

template <int kIndex>
__device__ __forceinline__ std::uint32_t Tuned<kIndex>::operand(const float* row, float unit, int g,
                                                                int t, int chunk, int r) {
  const float* from = row + 32 * chunk + 8 * t;
  const float inverse = 1.0f / unit;
  if constexpr (kInt8) {  // even columns: high bytes, odd: low bytes; r: upper half of k
    std::uint32_t packed = 0;
#pragma unroll
    for (int byte = 0; byte < 4; ++byte) {
      const int whole = __float2int_rn(from[4 * (byte % 2) + 2 * r + byte / 2] * inverse);
      const int high = (whole + 128) >> 8;
      packed |= (static_cast<std::uint32_t>(g % 2 ? whole - 256 * high : high) & 0xffu)
                << (8 * byte);
    }
    return packed;
  } else {  // r: 2·s + (upper half of k)
    const float factor = r % 2 ? inverse / kKeyK : inverse;
    return bits(__floats2half2_rn(from[2 * r] * factor, from[2 * r + 1] * factor));
  }
}

template <int kIndex>
__device__ __forceinline__ void Tuned<kIndex>::make_operands(const AttendParams& p,
                                                             const QueryTile<kDim>& tile,
                                                             Workshop& shop, int warp, int warps,
                                                             int lane) {
  const float scale = p.args.scale * 1.4426950408889634f;
#pragma unroll 1
  for (int row = warp; row < kRows; row += warps) {
    const float* from = tile.rotated + row * kRowStride<kDim> + lane;
    float top = 0.0f;
#pragma unroll
    for (int c = 0; c < kChunks; ++c) top = fmaxf(top, fabsf(from[32 * c]));
#pragma unroll
    for (int step = 1; step < kWarp; step *= 2) {
      top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, step));
    }
    // Bytes hold 15 bits and a sign; for halves a power of two, so that they lose nothing that
    // bf16 queries have.
    const float unit = !(top > 0.0f) ? 1.0f
                       : kInt8       ? top / 32512.0f
                                     : exp2f(static_cast<float>(ilogbf(top) - 2));
    if (lane == 0) shop.units[row] = unit;
    if constexpr (kChannel) continue;
    // Σq of the operands, not of the queries: codes and zero of a key then meet the same q, and
    // what its rounding adds is in proportion to the key and not to its much larger parts.
    float sums[kKeyGroups] = {};
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      const float x = from[32 * c] * (1.0f / unit);
      sums[32 * c / kFormat.key.group] += kInt8 ? rintf(x) : __half2float(__float2half_rn(x));
    }
#pragma unroll
    for (int b = 0; b < kKeyGroups; ++b) {
#pragma unroll
      for (int step = 1; step < kWarp; step *= 2) {
        sums[b] += __shfl_xor_sync(0xffffffffu, sums[b], step);
      }
      if (lane == 0) shop.sums[row][b] = sums[b] * unit * scale;
    }
  }
  __syncthreads();
  constexpr int kOfChunk = kInt8 ? 2 : 4;
#pragma unroll 1
  for (int word = warp; word < kWords; word += warps) {
    const int n = word / (kOfChunk * kChunks), chunk = word / kOfChunk % kChunks,
              r = word % kOfChunk;
    const int row = kNarrow ? lane / 8 : lane / 4 + 8 * n;
    shop.words[word][lane] = operand(tile.rotated + row * kRowStride<kDim>, shop.units[row],
                                     lane / 4, lane % 4, chunk, r);
  }
  __syncthreads();
}

template <int kIndex>
__device__ __forceinline__ auto Tuned<kIndex>::take_queries(const AttendParams& p,
                                                            const BlockPlace& at,
                                                            const QueryTile<kDim>& tile,
                                                            const Workshop& shop, int lane)
    -> Queries {
  constexpr int kOfChunk = kInt8 ? 2 : 4;
  const float scale = p.args.scale * 1.4426950408889634f;
  Queries q;
#pragma unroll
  for (int word = 0; word < kWords; ++word) {
    q.fragment[word / (kOfChunk * kChunks)][word / kOfChunk % kChunks][word % kOfChunk] =
        shop.words[word][lane];
  }
#pragma unroll
  for (int i = 0; i < kColumns; ++i) {
    const int row = lane_row(lane % 4, i);
    q.factor[i] = shop.units[row] * scale * (kInt8 ? 1.0f / 16.0f : 16777216.0f);
#pragma unroll
    for (int b = 0; b < kKeyGroups; ++b) q.sum[b][i] = shop.sums[row][b];
    q.bias[i] = 0.0f;
  }
  if (p.args.key_center) {
    for (int row = 0; row < kRows; ++row) {
      const float bias =
          center_logit<kDim>(p, at.head, tile.raw + row * kRowStride<kDim>, lane, scale);
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
        if (row == lane_row(lane % 4, i)) q.bias[i] = bias;
      }
    }
  }
  return q;
}

}  // namespace kvlab::kernels::cuda
