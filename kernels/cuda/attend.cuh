#pragma once

#include <cstdint>

#include "attend_table.h"
#include "mma.cuh"

/// What the attention kernels share: their parameters, queries in shared memory, rotations, and the
/// end of a block's work (merge over warps, over splits, and the output). Logits are in base 2
/// throughout.
namespace kvlab::kernels::cuda {

inline constexpr int kWarp = 32;
/// Stands for "no logit yet": finite, so that differences are never NaN.
inline constexpr float kNothing = -1e30f;

/// Where a block stands.
struct BlockPlace {
  int split, head, row_tile, sequence;
  int tokens, begin;  // tokens of the sequence, first one behind the sink
  HistoryEnds ends;
};

/// All but the lengths.
__device__ __forceinline__ BlockPlace block_coordinates(const AttendParams& p) {
  BlockPlace at;
  at.split = static_cast<int>(blockIdx.x);
  at.head = static_cast<int>(blockIdx.y);
  at.row_tile = 0;
  if (p.row_tiles > 1) {
    at.row_tile = at.head % p.row_tiles;
    at.head /= p.row_tiles;
  }
  at.sequence = static_cast<int>(blockIdx.z);
  return at;
}

__device__ __forceinline__ void fill_in_lengths(const AttendParams& p, int tokens, BlockPlace& at) {
  at.tokens = tokens;
  at.begin = history_begin(p.cache, at.tokens);
  at.ends = history_ends(p.cache.rule, at.tokens);
}

/// Query token of a row of the KV head; division is what short launches cannot afford.
__device__ __forceinline__ int query_of(const AttendParams& p, int row) {
  return p.args.query_tokens == 1 ? 0 : row / p.group;
}

/// Offset of row `row` (of all rows of the KV head) in query, output and log_sum_exp, in rows of
/// dim.
__device__ __forceinline__ std::int64_t row_offset(const AttendParams& p, const BlockPlace& at,
                                                   int row) {
  const int query = query_of(p, row);
  return static_cast<std::int64_t>(at.sequence * p.args.query_tokens + query) * p.args.q_heads +
         at.head * p.group + row - query * p.group;
}

__device__ __forceinline__ int row_count(const AttendParams& p) {
  return p.group * p.args.query_tokens;
}

/// Tokens [0, limit) are visible to a row.
__device__ __forceinline__ int row_limit(const AttendParams& p, const BlockPlace& at, int row) {
  return at.tokens - p.args.query_tokens + query_of(p, row) + 1;
}

__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float inverse_fast(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// Normalised Hadamard transform of a row that a warp holds, channel 32·k + lane in x[k].
template <int kPerLane>
__device__ __forceinline__ void hadamard_row(float (&x)[kPerLane], int lane) {
#pragma unroll
  for (int step = 1; step < kWarp; step *= 2) {
#pragma unroll
    for (int k = 0; k < kPerLane; ++k) {
      const float other = __shfl_xor_sync(0xffffffffu, x[k], step);
      x[k] = (lane & step) ? other - x[k] : x[k] + other;
    }
  }
#pragma unroll
  for (int step = 1; step < kPerLane; step *= 2) {
#pragma unroll
    for (int k = 0; k < kPerLane; ++k) {
      if (k & step) continue;
      const float a = x[k], b = x[k | step];
      x[k] = a + b;
      x[k | step] = a - b;
    }
  }
  constexpr int kDim = kPerLane * kWarp;
  const float norm = kDim == 64 ? 0.125f : kDim == 128 ? 0.08838834764831845f : 0.0625f;
#pragma unroll
  for (int k = 0; k < kPerLane; ++k) x[k] *= norm;
}

template <int kDim>
inline constexpr int kRowStride = row_stride(kDim);

/// Rows times a dense matrix, or its transpose. A warp makes 16 columns of all rows at a time, so
/// that the block reads the matrix once, in pieces of 64 bytes that are on their way together.
template <bool kTransposed, int kDim>
__device__ __forceinline__ void rotate_rows_dense(const float* matrix, const float* from, float* to,
                                                  int rows) {
  constexpr int kLoads = kDim / 8;  // of a lane, for 16 columns
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const int lane = thread % kWarp, g = lane / 4, t = lane % 4;
#pragma unroll 1
  for (int first = thread / kWarp * 16; first < kDim; first += threads / kWarp * 16) {
    float4 m[kLoads];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int row = kTransposed ? first + i % 2 * 8 + g : i / 4 * 32 + 4 * g + i % 4;
      const int column = (kTransposed ? i / 2 * 16 : first) + 4 * t;
      m[i] = __ldg(reinterpret_cast<const float4*>(matrix + row * kDim + column));
    }
    // Short code counts: it runs once, from memory.
#pragma unroll 2
    for (int row = 0; row < rows; ++row) {
      const float* x = from + row * kRowStride<kDim> + 4 * (kTransposed ? t : g);
      float* y = to + row * kRowStride<kDim> + first;
      const auto others = [](float sum, int step) {
        return __shfl_xor_sync(0xffffffffu, sum, step);
      };
      if constexpr (kTransposed) {
        float sums[2] = {};  // of columns g and g + 8
#pragma unroll
        for (int i = 0; i < kLoads; ++i) {
          const float4 terms = *reinterpret_cast<const float4*>(x + i / 2 * 16);
          sums[i % 2] = fmaf(terms.x, m[i].x, sums[i % 2]);
          sums[i % 2] = fmaf(terms.y, m[i].y, sums[i % 2]);
          sums[i % 2] = fmaf(terms.z, m[i].z, sums[i % 2]);
          sums[i % 2] = fmaf(terms.w, m[i].w, sums[i % 2]);
        }
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          sums[i] += others(sums[i], 2);
          sums[i] += others(sums[i], 1);
        }
        if (t < 2) y[g + 8 * t] = t ? sums[1] : sums[0];
      } else {
        float4 sums{};  // of columns 4t to 4t + 3
#pragma unroll
        for (int i = 0; i < kLoads; i += 4) {
          const float4 terms = *reinterpret_cast<const float4*>(x + i * 8);
          const float of[4] = {terms.x, terms.y, terms.z, terms.w};
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            sums.x = fmaf(of[j], m[i + j].x, sums.x);
            sums.y = fmaf(of[j], m[i + j].y, sums.y);
            sums.z = fmaf(of[j], m[i + j].z, sums.z);
            sums.w = fmaf(of[j], m[i + j].w, sums.w);
          }
        }
#pragma unroll
        for (int step = 4; step < kWarp; step *= 2) {
          sums.x += others(sums.x, step);
          sums.y += others(sums.y, step);
          sums.z += others(sums.z, step);
          sums.w += others(sums.w, step);
        }
        if (g == 0) *reinterpret_cast<float4*>(y + 4 * t) = sums;
      }
    }
  }
}

/// `rows` rows of `from` times R (or Rᵀ) into `to`, both in shared memory, by all threads of the
/// block. `from` and `to` may be the same for Hadamard only. The block must be synchronised before
/// and after.
template <bool kTransposed, int kDim>
__device__ __forceinline__ void rotate_rows(const Rotation& rotation, int head, const float* from,
                                            float* to, int rows) {
  if (rotation.kind == Rotation::Kind::hadamard) {
    constexpr int kStride = kRowStride<kDim>;
    const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
    const int lane = thread % kWarp;
    for (int row = thread / kWarp; row < rows; row += threads / kWarp) {
      float x[kDim / kWarp];
#pragma unroll
      for (int k = 0; k < kDim / kWarp; ++k) x[k] = from[row * kStride + k * kWarp + lane];
      hadamard_row(x, lane);
#pragma unroll
      for (int k = 0; k < kDim / kWarp; ++k) to[row * kStride + k * kWarp + lane] = x[k];
    }
    return;
  }
  const std::int64_t at = rotation.per_head ? static_cast<std::int64_t>(head) * kDim * kDim : 0;
  rotate_rows_dense<kTransposed, kDim>(rotation.matrix + at, from, to, rows);
}

/// Queries of one row tile in shared memory, float32, rows kRowStride apart; rows past the last are
/// 0.
template <int kDim>
struct QueryTile {
  float* raw;
  float* rotated;  // times key_rotation; the same memory where there is none
};

/// Eight numbers from `from` on, of `type`.
__device__ __forceinline__ void load_eight(const void* from, std::int64_t offset, Type type,
                                           float (&x)[8]) {
  if (type == Type::f32) {
    const auto* fours = reinterpret_cast<const float4*>(static_cast<const float*>(from) + offset);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float4 four = fours[i];
      x[4 * i] = four.x, x[4 * i + 1] = four.y, x[4 * i + 2] = four.z, x[4 * i + 3] = four.w;
    }
    return;
  }
  const uint4 raw =
      *reinterpret_cast<const uint4*>(static_cast<const std::uint16_t*>(from) + offset);
  const std::uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 pair = type == Type::f16 ? __half22float2(half2_of(words[i]))
                                          : make_float2(__uint_as_float(words[i] << 16),
                                                        __uint_as_float(words[i] & 0xffff0000u));
    x[2 * i] = pair.x, x[2 * i + 1] = pair.y;
  }
}

template <int kDim>
__device__ __forceinline__ void load_queries(const AttendParams& p, const BlockPlace& at,
                                             float* shared, int rows) {
  constexpr int kOfRow = kDim / 8;  // threads
  const int first = at.row_tile * rows, count = row_count(p);
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < rows * kOfRow;
       i += static_cast<int>(blockDim.x)) {
    const int row = i / kOfRow, column = i % kOfRow * 8;
    float x[8] = {};
    if (first + row < count) {
      load_eight(p.args.query, row_offset(p, at, first + row) * kDim + column, p.args.query_type,
                 x);
    }
    float* to = shared + row * kRowStride<kDim> + column;
    *reinterpret_cast<float4*>(to) = make_float4(x[0], x[1], x[2], x[3]);
    *reinterpret_cast<float4*>(to + 4) = make_float4(x[4], x[5], x[6], x[7]);
  }
}

/// After load_queries; synchronises the block.
template <int kDim>
__device__ __forceinline__ QueryTile<kDim> rotate_queries(const AttendParams& p,
                                                          const BlockPlace& at, float* shared,
                                                          int rows) {
  __syncthreads();
  QueryTile<kDim> tile{shared, shared};
  if (p.args.key_rotation.kind != Rotation::Kind::none) {
    tile.rotated = shared + rows * kRowStride<kDim>;
    rotate_rows<false, kDim>(p.args.key_rotation, at.head, tile.raw, tile.rotated, rows);
    __syncthreads();
  }
  return tile;
}

/// q·centre of a row in base-2 logits, by a whole warp; 0 where there is no centre.
template <int kDim>
__device__ __forceinline__ float center_logit(const AttendParams& p, int head,
                                              const float* query_row, int lane, float scale_log2) {
  if (!p.args.key_center) return 0.0f;
  float sum = 0.0f;
#pragma unroll
  for (int k = lane; k < kDim; k += kWarp)
    sum = fmaf(query_row[k], p.args.key_center[head * kDim + k], sum);
#pragma unroll
  for (int step = 16; step; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
  return sum * scale_log2;
}

template <int kDim>
inline constexpr int kOutputStride = output_stride(kDim);

/// Parts of a sum over tokens, one a warp, in shared memory: [rows, kOutputStride] each, a row
/// being its unscaled output, base-2 maximum and sum of weights.
struct WarpParts {
  float* memory;  // warp w's at memory + w · stride
  int stride;     // floats
};

/// The vector of columns that a thread has of its row.
template <int kWidth>
struct Columns {
  float x[kWidth];

  __device__ __forceinline__ void load(const float* from) {
    *this = *reinterpret_cast<const Columns*>(from);
  }
  __device__ __forceinline__ void load_past_l1(const float* from) {
    if constexpr (kWidth == 2) {
      const float2 y = __ldcg(reinterpret_cast<const float2*>(from));
      x[0] = y.x, x[1] = y.y;
    } else {
      const float4 y = __ldcg(reinterpret_cast<const float4*>(from));
      x[0] = y.x, x[1] = y.y, x[2] = y.z, x[3] = y.w;
    }
  }
  __device__ __forceinline__ void store(float* to) const {
    if constexpr (kWidth == 2) {
      *reinterpret_cast<float2*>(to) = make_float2(x[0], x[1]);
    } else {
      *reinterpret_cast<float4*>(to) = make_float4(x[0], x[1], x[2], x[3]);
    }
  }
  __device__ __forceinline__ void scale(float by) {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) x[i] *= by;
  }
  __device__ __forceinline__ void add(float by, const Columns& other) {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) x[i] = fmaf(by, other.x[i], x[i]);
  }
};

/// One thread's share of a sum over parts: columns of one row, with the base-2 maximum and the sum
/// of weights.
template <int kWidth>
struct RowPart {
  Columns<kWidth> columns;
  float top = kNothing;
  float sum = 0.0f;

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) columns.x[i] = 0.0f;
  }
  /// Adds kCount parts at once.
  template <int kCount>
  __device__ __forceinline__ void add(const float (&tops)[kCount], const float (&sums)[kCount],
                                      const Columns<kWidth> (&values)[kCount]) {
    float new_top = top;
#pragma unroll
    for (int i = 0; i < kCount; ++i) new_top = fmaxf(new_top, tops[i]);
    const float shrink = exp2_fast(top - new_top);
    top = new_top;
    sum *= shrink;
    columns.scale(shrink);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const float weight = exp2_fast(tops[i] - top);
      sum = fmaf(weight, sums[i], sum);
      columns.add(weight, values[i]);
    }
  }
};

/// After all warps wrote their part: joins them, hands the block's part to the last block of the
/// head (or is it), and writes the output. kRows: rows of a tile. `window`: of the tokens in 16
/// bits, in the captured space. `plain`: [rows, kRowStride] floats, room for what is rotated.
template <int kDim, int kRows>
__device__ void finish_block(const AttendParams& p, const BlockPlace& at, const WarpParts& history,
                             const WarpParts& window, float* plain, int warps) {
  constexpr int kWidth =
      kRows * kDim / 256 >= 4 ? 4 : 2;  // columns of one row that a thread has at a time
  constexpr int kSteps = kDim / kWidth;
  constexpr int kItems = kRows * kSteps;
  constexpr int kPart = kRows * (kDim + 2);
  constexpr int kTogether = 8;  // parts whose loads are in flight together
  constexpr float kLn2 = 0.6931471805599453f;
  __shared__ bool last;
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const std::int64_t item = static_cast<std::int64_t>(at.sequence) * gridDim.y + blockIdx.y;
  const int blocks = p.splits + p.window;
  const bool has_history = at.split < p.splits;
  const bool has_window = p.inside || !has_history;
  float* all = p.partial + item * (p.splits + p.window_parts()) * kPart;
  float* all_windows = all + static_cast<std::int64_t>(p.splits) * kPart;
  const bool rotates = p.args.value_rotation.kind != Rotation::Kind::none;
  __syncthreads();

  const auto join_warps = [&](const WarpParts& parts, int row, int column) {
    RowPart<kWidth> part;
    part.clear();
#pragma unroll 1
    for (int first = 0; first < warps; first += 4) {
      float tops[4], sums[4];
      Columns<kWidth> values[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* from = parts.memory + (first + i) * parts.stride + row * kOutputStride<kDim>;
        values[i].load(from + column);
        tops[i] = from[kDim];
        sums[i] = from[kDim + 1];
      }
      part.add(tops, sums, values);
    }
    return part;
  };
  const auto join_parts = [&](const float* all, int count, int row, int column) {
    RowPart<kWidth> part;
    part.clear();
#pragma unroll 1
    for (int first = 0; first < count; first += kTogether) {
      float tops[kTogether], sums[kTogether];
      Columns<kWidth> values[kTogether];
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        const float* from = all + static_cast<std::int64_t>(min(first + i, count - 1)) * kPart;
        values[i].load_past_l1(from + row * kDim + column);
        tops[i] = __ldcg(from + kRows * kDim + row);
        sums[i] = __ldcg(from + kRows * kDim + kRows + row);
      }
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        if (first + i >= count) tops[i] = kNothing, sums[i] = 0.0f;
      }
      part.add(tops, sums, values);
    }
    return part;
  };
  // Where history has to be rotated, its columns and the window's wait in shared memory: the
  // window's where its first warp's were, which no other thread reads.
  float* window_columns = window.memory;
  const auto write = [&](int row, int column, const Columns<kWidth>& columns) {
    const int absolute = at.row_tile * kRows + row;
    if (absolute >= row_count(p)) return;
    const std::int64_t place = row_offset(p, at, absolute) * kDim + column;
#pragma unroll
    for (int i = 0; i < kWidth; ++i)
      store_number(p.args.output, place + i, p.args.output_type, columns.x[i]);
  };
  const auto join = [&](int row, int column, RowPart<kWidth> history, RowPart<kWidth> window) {
    const float top = fmaxf(history.top, window.top);
    const float a = exp2_fast(history.top - top), b = exp2_fast(window.top - top);
    const float total = a * history.sum + b * window.sum;
    const float inverse = total > 0.0f ? 1.0f / total : 0.0f;
    history.columns.scale(a * inverse);
    window.columns.scale(b * inverse);
    if (rotates) {
      history.columns.store(plain + row * kRowStride<kDim> + column);
      if (p.window_parts())
        window.columns.store(window_columns + row * kOutputStride<kDim> + column);
    } else {
      history.columns.add(1.0f, window.columns);
      write(row, column, history.columns);
    }
    const int absolute = at.row_tile * kRows + row;
    if (column == 0 && p.args.log_sum_exp && absolute < row_count(p)) {
      p.args.log_sum_exp[row_offset(p, at, absolute)] =
          total > 0.0f ? (top + log2f(total)) * kLn2 : -INFINITY;
    }
  };

  if (blocks > 1) {
#pragma unroll 1
    for (int i = thread; i < (has_history + has_window) * kItems; i += threads) {
      const bool is_window = !has_history || i >= kItems;
      const int row = i % kItems / kSteps, column = i % kSteps * kWidth;
      const WarpParts parts{is_window ? window.memory : history.memory,
                            is_window ? window.stride : history.stride};
      const RowPart<kWidth> part = join_warps(parts, row, column);
      const int place = at.split + (is_window && has_history ? p.splits : 0);
      float* mine = all + static_cast<std::int64_t>(place) * kPart;
      part.columns.store(mine + row * kDim + column);
      if (column == 0) {
        mine[kRows * kDim + row] = part.top;
        mine[kRows * kDim + kRows + row] = part.sum;
      }
    }
    __syncthreads();
    if (thread == 0) {
      // It wraps to 0 at the last part, so the ticket is ready for the next launch. Release and
      // acquire hold for what the barriers around ordered.
      unsigned turn;
      asm volatile("atom.inc.acq_rel.gpu.global.u32 %0, [%1], %2;"
                   : "=r"(turn)
                   : "l"(p.ticket + item), "r"(blocks - 1)
                   : "memory");
      last = turn == static_cast<unsigned>(blocks - 1);
    }
    __syncthreads();
    if (!last) return;
  }
#pragma unroll 1
  for (int i = thread; i < kItems; i += threads) {
    const int row = i / kSteps, column = i % kSteps * kWidth;
    RowPart<kWidth> of_history, of_window;
    of_window.clear();
    if (blocks == 1) {
      of_history = join_warps(history, row, column);
      if (p.inside) of_window = join_warps(window, row, column);
    } else {
      of_history = join_parts(all, p.splits, row, column);
      if (p.window_parts()) of_window = join_parts(all_windows, p.window_parts(), row, column);
    }
    join(row, column, of_history, of_window);
  }
  if (!rotates) return;
  __syncthreads();
  float* rotated = p.args.value_rotation.kind == Rotation::Kind::dense ? history.memory : plain;
  rotate_rows<true, kDim>(p.args.value_rotation, at.head, plain, rotated, kRows);
  __syncthreads();
#pragma unroll 1
  for (int i = thread; i < kItems; i += threads) {
    const int row = i / kSteps, column = i % kSteps * kWidth;
    Columns<kWidth> columns;
    columns.load(rotated + row * kRowStride<kDim> + column);
    if (p.window_parts()) {
      Columns<kWidth> window;
      window.load(window_columns + row * kOutputStride<kDim> + column);
      columns.add(1.0f, window);
    }
    write(row, column, columns);
  }
}

}  // namespace kvlab::kernels::cuda
