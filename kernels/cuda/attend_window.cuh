#pragma once

#include "attend_merge.cuh"
#include "attend_tile.cuh"
#include "mma.cuh"
#include "packed_number.cuh"

/// Attention over the tokens that are held in 16 bits: sink and recent window, in the space of the
/// captured tensors. The merge adds them to what became of the history.
namespace kvlab::kernels::cuda {

/// Channel of a row of product m: word 2(m%2) + row/8 of the 16 bytes that lane t = row%8/2 loads
/// of every 32 channels.
__device__ __forceinline__ int window_channel(int m, int row) {
  return 32 * (m / 2) + 8 * (row % 8 / 2) + 4 * (m % 2) + 2 * (row / 8) + row % 2;
}

/// Running state of a warp: O of rows (2t, 2t + 1) + 8n and channels window_channel(m, g) and
/// window_channel(m, g + 8), base-2 maximum and sum a row.
template <int kDim, int kTiles>
struct WarpState {
  float output[kDim / 16][kTiles][4];
  float maximum[kTiles][2];
  float sum[kTiles][2];  // of this lane's tokens only

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int m = 0; m < kDim / 16; ++m)
#pragma unroll
      for (int n = 0; n < kTiles; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) output[m][n][i] = 0.0f;
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      maximum[n][0] = maximum[n][1] = kNothing;
      sum[n][0] = sum[n][1] = 0.0f;
    }
  }
};

__device__ __forceinline__ float max_over_rows(float x) {
#pragma unroll
  for (int step = 4; step < kWarp; step *= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, step));
  return x;
}

__device__ __forceinline__ float sum_over_rows(float x) {
#pragma unroll
  for (int step = 4; step < kWarp; step *= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
  return x;
}

/// Row of a token in a 16-bit window.
__device__ __forceinline__ const std::uint16_t* window_row(const CacheView& cache,
                                                           const std::uint16_t* sink,
                                                           const std::uint16_t* recent,
                                                           const BlockPlace& at, int token,
                                                           int dim) {
  if (token < at.begin) {
    return sink + at.sequence * cache.sink_stride +
           (static_cast<std::int64_t>(at.head) * cache.sink_capacity + token) * dim;
  }
  return recent + at.sequence * cache.recent_stride +
         (static_cast<std::int64_t>(at.head) * cache.recent_capacity +
          token % cache.recent_capacity) *
             dim;
}

/// Logit part q·k̂ of a token whose key is packed although its value is not (flush rule kivi), by a
/// whole warp.
template <int kDim>
__device__ float packed_key_logit(const AttendParams& p, const BlockPlace& at,
                                  const float* query_row, int token, int lane) {
  const CacheView& cache = p.cache;
  const Layout layout = layout_of(cache.format);
  const int per_block = block_tokens(cache.format), index = token - at.begin;
  const std::uint8_t* block =
      block_at(cache, layout.bytes, at.sequence, at.head, index / per_block);
  const Grid grid = decoding_grid(cache.format.key, cache.key_levels);
  float sum = 0.0f;
  for (int channel = lane; channel < kDim; channel += kWarp) {
    sum = fmaf(query_row[channel], key_at(cache, layout, grid, block, index % per_block, channel),
               sum);
  }
#pragma unroll
  for (int step = 16; step; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
  return sum * norm_at(cache.format, layout, block, index % per_block);
}

template <int kDim, int kRows, bool kBf16>
__device__ void window_tiles(const AttendParams& p, const BlockPlace& at,
                             const QueryTile<kDim>& queries, const WarpParts& parts, int warp,
                             int warps) {
  constexpr int kTiles = kRows > 8 ? 2 : 1;
  const int lane = static_cast<int>(threadIdx.x) % kWarp, g = lane / 4, t = lane % 4;
  const CacheView& cache = p.cache;
  const int tail = at.ends.key < at.ends.value ? at.ends.key : at.ends.value;
  const int count = at.begin + at.tokens - tail;
  const float scale = p.args.scale * 1.4426950408889634f;
  const bool exact_query = p.args.query_type == cache.format.window;
  WarpState<kDim, kTiles> state;
  state.clear();

  const int shares = at.window_splits(p), share = p.inside ? at.split : at.split - at.splits;
  for (int first = (share + shares * warp) * kTile; first < count;
       first += shares * warps * kTile) {
    int token[2];
    bool there[2];
    const std::uint16_t *keys[2], *values[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int i = first + g + 8 * half;
      there[half] = i < count;
      const int inside = there[half] ? i : count - 1;
      token[half] = inside < at.begin ? inside : tail + inside - at.begin;
      keys[half] = window_row(cache, cache.sink_key, cache.recent_key, at, token[half], kDim);
      values[half] = window_row(cache, cache.sink_value, cache.recent_value, at, token[half], kDim);
    }
    // Values are on their way while the logits are made. 16 bytes of a token are eight channels, so
    // a product's rows are channels window_channel(m, row).
    uint4 value_words[kDim / 32][2];
#pragma unroll
    for (int chunk = 0; chunk < kDim / 32; ++chunk)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        value_words[chunk][half] =
            *reinterpret_cast<const uint4*>(values[half] + chunk * 32 + t * 8);
    float logits[kTiles][4] = {};
#pragma unroll
    for (int chunk = 0; chunk < kDim / 32; ++chunk) {
      const uint4 a = *reinterpret_cast<const uint4*>(keys[0] + chunk * 32 + t * 8);
      const uint4 b = *reinterpret_cast<const uint4*>(keys[1] + chunk * 32 + t * 8);
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        const int row = g + 8 * n;
        float q[8];
#pragma unroll
        for (int e = 0; e < 8; ++e)
          q[e] = row < kRows ? queries.raw[row * kRowStride<kDim> + chunk * 32 + t * 8 + e] : 0.0f;
        const SplitPair<kBf16> q0(q[0], q[1]), q1(q[2], q[3]), q2(q[4], q[5]), q3(q[6], q[7]);
        mma_16<kBf16>(logits[n], a.x, b.x, a.y, b.y, q0.high, q1.high);
        mma_16<kBf16>(logits[n], a.z, b.z, a.w, b.w, q2.high, q3.high);
        if (!exact_query) {
          mma_16<kBf16>(logits[n], a.x, b.x, a.y, b.y, q0.low, q1.low);
          mma_16<kBf16>(logits[n], a.z, b.z, a.w, b.w, q2.low, q3.low);
        }
      }
    }
#pragma unroll
    for (int n = 0; n < kTiles; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) logits[n][i] *= scale;

    if (tail < at.ends.key && first + kTile > at.begin) {
      for (int i = 0; i < kTile; ++i) {
        const int index = first + i;
        if (index < at.begin || index >= count) continue;
        const int its_token = tail + index - at.begin;
        if (its_token >= at.ends.key) break;
        for (int row = 0; row < kRows; ++row) {
          const float logit =
              packed_key_logit<kDim>(p, at, queries.rotated + row * kRowStride<kDim>, its_token,
                                     lane) *
                  scale +
              center_logit<kDim>(p, at.head, queries.raw + row * kRowStride<kDim>, lane, scale);
          if (g == i % 8 && t == row % 8 / 2) {
#pragma unroll
            for (int n = 0; n < kTiles; ++n)
#pragma unroll
              for (int k = 0; k < 4; ++k) {
                if (n == row / 8 && k == i / 8 * 2 + row % 2) logits[n][k] = logit;
              }
          }
        }
      }
    }

    std::uint32_t high[kTiles][2], low[kTiles][2];
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      float weights[4];
#pragma unroll
      for (int column = 0; column < 2; ++column) {
        const int row = at.row_tile * kRows + 8 * n + 2 * t + column;
        const int limit = row_limit(p, at, row);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          if (!there[half] || token[half] >= limit) logits[n][2 * half + column] = -INFINITY;
        }
        const float top = fmaxf(state.maximum[n][column],
                                max_over_rows(fmaxf(logits[n][column], logits[n][2 + column])));
        const float shrink = exp2_fast(state.maximum[n][column] - top);
        state.maximum[n][column] = top;
        state.sum[n][column] *= shrink;
#pragma unroll
        for (int m = 0; m < kDim / 16; ++m) {
          state.output[m][n][column] *= shrink;
          state.output[m][n][2 + column] *= shrink;
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          weights[2 * half + column] = exp2_fast(logits[n][2 * half + column] - top);
          state.sum[n][column] += weights[2 * half + column];
        }
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const SplitPair<kBf16> pair(weights[2 * half], weights[2 * half + 1]);
        high[n][half] = transpose_8x8(pair.high);
        low[n][half] = transpose_8x8(pair.low);
      }
    }
#pragma unroll
    for (int m = 0; m < kDim / 16; ++m) {
      std::uint32_t a[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint4& x = value_words[m / 2][i / 2];
        a[i] = transpose_8x8(m % 2 ? (i % 2 ? x.w : x.z) : (i % 2 ? x.y : x.x));
      }
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        mma_16<kBf16>(state.output[m][n], a[0], a[1], a[2], a[3], high[n][0], high[n][1]);
        mma_16<kBf16>(state.output[m][n], a[0], a[1], a[2], a[3], low[n][0], low[n][1]);
      }
    }
  }

  float* output = parts.memory + warp * parts.stride;
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int column = 0; column < 2; ++column) {
      const int row = 8 * n + 2 * t + column;
      const float sum = sum_over_rows(state.sum[n][column]);
      if (row >= kRows) continue;
      if (g == 0) {
        output[row * kOutputStride<kDim> + kDim] = state.maximum[n][column];
        output[row * kOutputStride<kDim> + kDim + 1] = sum;
      }
#pragma unroll
      for (int m = 0; m < kDim / 16; ++m) {
        float* to = output + row * kOutputStride<kDim>;
        to[window_channel(m, g)] = state.output[m][n][column];
        to[window_channel(m, g + 8)] = state.output[m][n][2 + column];
      }
    }
  }
}

/// A block's share of sink and recent window, by all its warps, into `parts`. Inlined: a call's
/// register convention binds the history's loop.
template <int kDim, int kRows>
__device__ __forceinline__ void window_part(const AttendParams& p, const BlockPlace& at,
                                            const QueryTile<kDim>& queries, const WarpParts& parts,
                                            int warp, int warps) {
  if (p.cache.format.window == Type::bf16) {
    window_tiles<kDim, kRows, true>(p, at, queries, parts, warp, warps);
  } else {
    window_tiles<kDim, kRows, false>(p, at, queries, parts, warp, warps);
  }
}

}  // namespace kvlab::kernels::cuda
