#include <algorithm>

#include "kvlab/kernels/cuda.h"
#include "launch.cuh"

namespace kvlab::kernels::cuda {
namespace {

constexpr int kThreads = 64;
constexpr int kPiece = 8;  // channels of a thread: 16 bytes of the window

/// Copies `kPiece` numbers to a window, rounding where the types differ.
__device__ void copy_piece(const void* from, std::int64_t at, Type type, std::uint16_t* to,
                           Type window) {
  if (type == window) {
    const auto* piece = static_cast<const std::uint16_t*>(from) + at;
    if (reinterpret_cast<std::uintptr_t>(piece) % 16 == 0) {
      *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(piece);
    } else {
      for (int i = 0; i < kPiece; ++i) to[i] = piece[i];
    }
    return;
  }
  for (int i = 0; i < kPiece; ++i) store_number(to, i, window, load_number(from, at + i, type));
}

/// A thread has a piece of a row of a side; rows are the tokens of the sink and then those of the
/// ring, both counted from the first that the step may bring there. Grid: (rows' pieces, heads,
/// sequences).
__global__ void __launch_bounds__(kThreads)
    window_kernel(const __grid_constant__ CacheView cache,
                  const __grid_constant__ TokenSource source, int step, int sink_rows, int rows) {
  wait_for_predecessor();
  release_successor();
  const int dim = cache.format.dim;
  const unsigned pieces = static_cast<unsigned>(dim / kPiece);
  const unsigned index = blockIdx.x * kThreads + threadIdx.x;
  const int channel = static_cast<int>(index % pieces) * kPiece;
  const bool key = index / pieces % 2 == 0;
  const int row = static_cast<int>(index / pieces / 2);
  if (row >= rows) return;
  const int head = static_cast<int>(blockIdx.y);
  const int sequence = static_cast<int>(blockIdx.z);

  const int tokens = cache.tokens[sequence];
  const int first = step_begin(tokens, step);
  const int start = history_begin(cache, tokens);
  const bool sink = row < sink_rows;
  // Of the step's tokens behind the sink the last that the ring holds, so that a later flush finds
  // them there.
  const int ring = tokens - cache.recent_capacity > start ? tokens - cache.recent_capacity : start;
  const int token = sink ? first + row : (first > ring ? first : ring) + row - sink_rows;
  if (token >= (sink ? start : tokens)) return;

  const int capacity = sink ? cache.sink_capacity : cache.recent_capacity;
  const std::int64_t stride = sink ? cache.sink_stride : cache.recent_stride;
  std::uint16_t* window = sink ? (key ? cache.sink_key : cache.sink_value)
                               : (key ? cache.recent_key : cache.recent_value);
  const int place = sink ? token : token % capacity;
  std::uint16_t* to =
      window + sequence * stride + (std::int64_t{head} * capacity + place) * dim + channel;
  const std::int64_t from = sequence * source.batch_stride + head * source.head_stride +
                            (token - first) * source.token_stride + channel;
  copy_piece(key ? source.key : source.value, from, source.type, to, cache.format.window);
}

__global__ void __launch_bounds__(kThreads)
    advance_kernel(std::int32_t* tokens, int batch, int step) {
  wait_for_predecessor();
  const int b = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (b < batch) tokens[b] += step;
}

unsigned blocks_of(int threads) {
  return static_cast<unsigned>((threads + kThreads - 1) / kThreads);
}

}  // namespace

void write_windows(const CacheView& cache, const TokenSource& source, int step, int max_step,
                   Stream stream) {
  const int sink_rows = std::min(max_step, cache.rule.sink);
  const int rows = sink_rows + std::min(max_step, cache.recent_capacity);
  if (rows <= 0 || cache.batch <= 0) return;
  const dim3 grid(blocks_of(rows * 2 * cache.format.dim / kPiece),
                  static_cast<unsigned>(cache.kv_heads), static_cast<unsigned>(cache.batch));
  launch_after(window_kernel, grid, kThreads, 0, stream, cache, source, step, sink_rows, rows);
}

void advance(std::int32_t* tokens, int batch, int step, Stream stream) {
  if (batch <= 0) return;
  launch_after(advance_kernel, dim3(blocks_of(batch)), kThreads, 0, stream, tokens, batch, step);
}

}  // namespace kvlab::kernels::cuda
