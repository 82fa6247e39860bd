#pragma once

#include "attend_tuned.cuh"

/// From logits and a record's values to a warp's running state, in the tuned attention.
namespace kvlab::kernels::cuda {

template <int kIndex>
__device__ __forceinline__ void Tuned<kIndex>::move_references(State& state, const Logits& x,
                                                               float value_scale) {
  float largest = value_scale;
#pragma unroll
  for (int step = 1; step < kWarp; step *= 2)
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, step));
  const float extra = largest > kLargeScale ? log2f(largest / kLargeScale) : 0.0f;
#pragma unroll
  for (int i = 0; i < kColumns; ++i) {
    float top = -INFINITY;
#pragma unroll
    for (int tile = 0; tile < 4; ++tile) top = fmaxf(top, fmaxf(x[tile][0][i], x[tile][1][i]));
    top = max_over_rows(top) + extra;
    if (!(top > state.reference[i] + kHeadroom)) continue;
    const float shrink = exp2_fast(state.reference[i] - (top - kStart));
    state.reference[i] = top - kStart;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      state.sums[half][i] *= shrink;
      state.zeros[half][i] *= shrink;
    }
    const int n = i / 2, column = i % 2;
    state.zero[n][column] *= shrink;
    state.zero[n][2 + column] *= shrink;
#pragma unroll
    for (int m = 0; m < kMTiles; ++m) {
      state.output[m][n][column] *= shrink;
      state.output[m][n][2 + column] *= shrink;
    }
  }
}

template <int kIndex>
__device__ __forceinline__ void Tuned<kIndex>::add_values(const unsigned char* record,
                                                          const Logits& x, int lane, State& state,
                                                          const TokenNumbers& scales) {
  const int g = lane / 4, t = lane % 4;
  const TokenNumbers zeros(record + kLayout.value_zero, kValueGroups == 1 ? g : 0);
#pragma unroll
  for (int tile = 0; tile < 4; ++tile) {
    float weights[2][kColumns];
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
        const float reference = half ? state.reference[i] + kValueKLog : state.reference[i];
        weights[half][i] = exp2_fast(x[tile][half][i] - reference);
      }
    std::uint32_t low[kTiles], high[kTiles];  // P as the B operand, lower and upper half of k
    if constexpr (kNarrow) {
      const __half2 pair = __floats2half2_rn(weights[0][0], weights[1][0]);
      __half2 scaled = pair;
      if constexpr (kValueGroups == 1) scaled = __hmul2(pair, half2_of(scales.pairs[tile]));
      add_weights(state, zeros, tile, 0, 0, __low2float(pair), __low2float(scaled));
      add_weights(state, zeros, tile, 1, 0, __high2float(pair), __high2float(scaled));
      low[0] = transpose_8x8(bits(scaled));  // head t in column 2t; odd columns are never read
      high[0] = __shfl_xor_sync(0xffffffffu, low[0], 4);
    } else {
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        std::uint32_t operand[2];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const __half2 pair = __floats2half2_rn(weights[half][2 * n], weights[half][2 * n + 1]);
          __half2 scaled = pair;
          if constexpr (kValueGroups == 1) {
            const __half2 both = half2_of(scales.pairs[tile]);
            scaled = __hmul2(pair, half ? __high2half2(both) : __low2half2(both));
          }
          float2 weight = __half22float2(pair);
          const float2 product = __half22float2(scaled);
          if constexpr (kValueGroups == 1 && !kOffset) {
            // Codes meet P·s, which is rounded again: zeros and sums then meet that over s. (Not
            // where it is subnormal or s is 0, as then P is all there is.)
            const float inverse = inverse_fast(scales.get(tile, half));
            if (product.x >= kLeastNormal) weight.x = product.x * inverse;
            if (product.y >= kLeastNormal) weight.y = product.y * inverse;
          }
          add_weights(state, zeros, tile, half, 2 * n, weight.x, product.x);
          add_weights(state, zeros, tile, half, 2 * n + 1, weight.y, product.y);
          operand[half] = transpose_8x8(bits(scaled));
        }
        low[n] = operand[0];
        high[n] = operand[1];
      }
    }
    std::uint32_t words[lane_words(kDim, kValueBits)];
    load_tile<kValueBits>(record + kLayout.value_codes, tile, lane, words);
    // Of the row of ones where there is one.
    const std::uint32_t other = kOnesRow && g == kValueGroups ? 0x3c003c00u : 0u;
    std::uint32_t zero_low = other, zero_high = other;
    if constexpr (kValueGroups > 1) {
      if (g < kValueGroups) {
        const unsigned char* from =
            record + kLayout.value_zero + 2 * (g * kRecordTokens + tile * kTile + 2 * t);
        zero_low = *reinterpret_cast<const std::uint32_t*>(from);
        zero_high = *reinterpret_cast<const std::uint32_t*>(from + 16);
      }
      if constexpr (!kOffset) {
#pragma unroll
        for (int n = 0; n < kTiles; ++n)
          mma_f16(state.zero[n], zero_low, 0, 0, zero_high, low[n], high[n]);
      }
    }
#pragma unroll
    for (int b = 0; b < kValueGroups; ++b) {
      std::uint32_t low_scaled[kTiles], high_scaled[kTiles];
      std::uint32_t s_low = 0, s_high = 0;
      if constexpr (kValueGroups > 1) {
        const unsigned char* from =
            record + kLayout.value_scale + 2 * (b * kRecordTokens + tile * kTile + 2 * t);
        s_low = *reinterpret_cast<const std::uint32_t*>(from);
        s_high = *reinterpret_cast<const std::uint32_t*>(from + 16);
      }
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        low_scaled[n] =
            kValueGroups > 1 ? bits(__hmul2(half2_of(low[n]), half2_of(s_low))) : low[n];
        high_scaled[n] =
            kValueGroups > 1 ? bits(__hmul2(half2_of(high[n]), half2_of(s_high))) : high[n];
        if constexpr (kValueGroups > 1 && kOffset) {
          mma_f16(state.zero[n], g == b ? zero_low : 0, 0, 0, g == b ? zero_high : 0, low_scaled[n],
                  high_scaled[n]);
        }
      }
#pragma unroll
      for (int i = 0; i < kMTiles / kValueGroups; ++i) {
        const int m = b * (kMTiles / kValueGroups) + i;
        const std::uint32_t a0 = codes<kValueBits>(words, 4 * m),
                            a1 = codes<kValueBits>(words, 4 * m + 1);
        const std::uint32_t a2 = codes<kValueBits>(words, 4 * m + 2),
                            a3 = codes<kValueBits>(words, 4 * m + 3);
#pragma unroll
        for (int n = 0; n < kTiles; ++n)
          mma_f16(state.output[m][n], a0, a1, a2, a3, low_scaled[n], high_scaled[n]);
      }
    }
  }
}

template <int kIndex>
__device__ __forceinline__ float Tuned<kIndex>::value_scale_bound(const unsigned char* record,
                                                                  const TokenNumbers& scales,
                                                                  int lane) {
  __half2 top;
  if constexpr (kValueGroups == 1) {
    top = __hmax2(__hmax2(half2_of(scales.pairs[0]), half2_of(scales.pairs[1])),
                  __hmax2(half2_of(scales.pairs[2]), half2_of(scales.pairs[3])));
  } else {
    constexpr int kBytes = kValueGroups * kRecordTokens * 2;
    top = __float2half2_rn(0.0f);
#pragma unroll
    for (int first = 0; first < kBytes; first += 512) {
      const uint4 x = *reinterpret_cast<const uint4*>(record + kLayout.value_scale +
                                                      (first + lane * 16) % kBytes);
      top = __hmax2(top, __hmax2(__hmax2(half2_of(x.x), half2_of(x.y)),
                                 __hmax2(half2_of(x.z), half2_of(x.w))));
    }
  }
  return fmaxf(__low2float(top), __high2float(top));
}

template <int kIndex>
__device__ __forceinline__ void Tuned<kIndex>::hand_over(const State& state, const Queries& q,
                                                         const WarpParts& parts, int warp,
                                                         int lane) {
  const int g = lane / 4, t = lane % 4;
  float* output = parts.memory + warp * parts.stride;
  constexpr float kSign = kOffset ? -1.0f : 1.0f;
#pragma unroll
  for (int i = 0; i < kColumns; ++i) {
    const int row = lane_row(t, i), n = i / 2, column = i % 2;
    float sum, zero = 0.0f;
    if constexpr (kValueGroups == 1)
      zero = sum_over_rows(state.zeros[0][i] + kValueK * state.zeros[1][i]);
    const float group_zero = state.zero[n][column] + kValueK * state.zero[n][2 + column];
    if constexpr (kOnesRow) {
      sum = __shfl_sync(0xffffffffu, group_zero, kValueGroups * 4 + t);
    } else {
      sum = sum_over_rows(state.sums[0][i] + kValueK * state.sums[1][i]);
    }
    if (g == 0) {
      output[row * kOutputStride<kDim> + kDim] = state.reference[i] + q.bias[i];
      output[row * kOutputStride<kDim> + kDim + 1] = sum;
    }
#pragma unroll
    for (int m = 0; m < kMTiles; ++m) {
      if constexpr (kValueGroups > 1) {
        zero = __shfl_sync(0xffffffffu, group_zero, m / (kMTiles / kValueGroups) * 4 + t);
      }
      output[row * kOutputStride<kDim> + 16 * m + g] =
          fmaf(state.output[m][n][column], 16777216.0f, kSign * zero);
      output[row * kOutputStride<kDim> + 16 * m + 8 + g] =
          fmaf(state.output[m][n][2 + column], 16777216.0f / kValueRow, kSign * zero);
    }
  }
}

}  // namespace kvlab::kernels::cuda
