#pragma once

#include "attend_rotate.cuh"

/// The end of a block's work: merge over warps and over blocks, and the output.
namespace kvlab::kernels::cuda {

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
  const int blocks = at.splits + p.window, windows = at.window_splits(p);
  const bool has_history = at.has_history();
  const bool has_window = p.inside || !has_history;
  float* all =
      p.partial +
      std::uint64_t{blockIdx.y * p.parts + p.first_part(at.sequence, at.first_place)} * kPart;
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
  const auto join_parts = [&](int begin, int end, int row, int column) {
    RowPart<kWidth> part;
    part.clear();
#pragma unroll 1
    for (int first = begin; first < end; first += kTogether) {
      float tops[kTogether], sums[kTogether];
      Columns<kWidth> values[kTogether];
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        const float* from = all + static_cast<std::int64_t>(min(first + i, end - 1)) * kPart;
        values[i].load_past_l1(from + row * kDim + column);
        tops[i] = __ldcg(from + kRows * kDim + row);
        sums[i] = __ldcg(from + kRows * kDim + kRows + row);
      }
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        if (first + i >= end) tops[i] = kNothing, sums[i] = 0.0f;
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
      if (p.has_window()) window.columns.store(window_columns + row * kOutputStride<kDim> + column);
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
      const int place = at.split + (is_window && has_history ? at.splits : 0);
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
                   : "l"(p.ticket + (static_cast<unsigned>(at.sequence) * gridDim.y + blockIdx.y)),
                     "r"(blocks - 1)
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
      // Apart only where the history's has to be rotated back: else one row of loads has both.
      const int parts = at.splits + windows, history_parts = rotates ? at.splits : parts;
      of_history = join_parts(0, history_parts, row, column);
      if (history_parts < parts) of_window = join_parts(history_parts, parts, row, column);
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
    if (p.has_window()) {
      Columns<kWidth> window;
      window.load(window_columns + row * kOutputStride<kDim> + column);
      columns.add(1.0f, window);
    }
    write(row, column, columns);
  }
}

}  // namespace kvlab::kernels::cuda
