#include <stdexcept>

#include "check.h"
#include "encode_job.cuh"
#include "kvlab/kernels/cuda.h"
#include "packed_number.cuh"
#include "warp_row.cuh"

namespace kvlab::kernels::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kRows = 4;  // tokens of a warp, of one block: their loads are in flight together

/// A side as far as decoding needs it, without divisions by what is known at run time only.
struct StoredSide {
  SideFormat format;
  Grid grid;
  Sections at;
  int group_shift;  // log2 of a group's numbers
  int held;         // tokens of a block

  __device__ StoredSide(const CacheView& cache, Side side)
      : format(side == Side::key ? cache.format.key : cache.format.value),
        grid(decoding_grid(format, side == Side::key ? cache.key_levels : cache.value_levels)),
        at(sections_of(layout_of(cache.format), side)),
        group_shift(format.group == 32   ? 5
                    : format.group == 64 ? 6
                                         : 7),
        held(block_tokens(cache.format)) {}

  /// layout.h's param_index; of a token's groups lane 0 tells, as groups are no smaller than a
  /// warp.
  __device__ int param(int token, int channel, int dim) const {
    if (format.axis == Axis::channel) return (token >> group_shift) * dim + channel;
    if (format.group == dim) return token_slot(token);
    return (channel >> group_shift) * held + token;
  }
};

/// Tokens side by side as their codes say.
template <int N, int kBits>
__device__ void decode_rows(const StoredSide& side, bool key, const std::uint8_t* block, int token,
                            int lane, float (&x)[kRows][N]) {
  constexpr int dim = 32 * N;
#pragma unroll
  for (int r = 0; r < kRows; ++r)
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const int channel = 32 * i + lane;
      const Place place = key ? key_place(dim, kBits, token + r, channel)
                              : value_place(dim, kBits, token + r, channel);
      const int index = side.param(token + r, channel, dim);
      GroupParams params;
      params.scale = load_number(block + side.at.scale, index, side.format.params);
      if (stores_zero(side.format))
        params.zero = load_number(block + side.at.zero, index, side.format.params);
      x[r][i] = value_of(side.grid, params, code_at(block + side.at.codes, place, kBits));
    }
}

/// The row without the transforms of encoding.
template <int N>
__device__ void undo(const CacheView& cache, const SideEncode& spec, Side side, int head,
                     const std::uint8_t* block, int token, int lane, float (&x)[N]) {
  const Format& format = cache.format;
  if (side == Side::key && format.norm != Norm::none) {
    const float norm =
        load_number(block + layout_of(format).norm, norm_index(token), format.norm_type);
#pragma unroll
    for (int i = 0; i < N; ++i)
      x[i] = format.norm_inverse ? divide(x[i], norm) : multiply(x[i], norm);
  }
  rotate(spec.rotation, head, true, lane, x);
  if (!spec.center) return;
#pragma unroll
  for (int i = 0; i < N; ++i) x[i] = add(x[i], spec.center[head * 32 * N + 32 * i + lane]);
}

/// A warp has some tokens of a side and head of a sequence. Grid: (tokens, 2 · kv_heads,
/// sequences).
template <int N>
__global__ void __launch_bounds__(32 * kWarps, N <= 4 ? 3 : 2)
    dequantize_kernel(const __grid_constant__ CacheView cache,
                      const __grid_constant__ EncodeSpec spec, bool undoes, void* key, void* value,
                      Type type, std::int64_t row_capacity) {
  constexpr int dim = 32 * N;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int head = static_cast<int>(blockIdx.y) / 2, sequence = static_cast<int>(blockIdx.z);
  const bool keys = blockIdx.y % 2 == 0;
  const Side side = keys ? Side::key : Side::value;
  void* to = keys ? key : value;
  if (!to) return;
  const Span span = span_of(cache.rule, cache.tokens[sequence], kAllTokens, side);
  const StoredSide stored(cache, side);
  const int bytes = layout_of(cache.format).bytes;
  const std::int64_t first = (std::int64_t{blockIdx.x} * kWarps + warp) * kRows;
  const std::int64_t end = min(std::int64_t{span.end}, row_capacity);
  if (first >= end) return;
  const int at = static_cast<int>(first), in_block = at & (stored.held - 1);
  const std::uint8_t* block = block_at(cache, bytes, sequence, head, at / stored.held);
  float x[kRows][N];
  switch (stored.format.bits) {
    case 2:
      decode_rows<N, 2>(stored, keys, block, in_block, lane, x);
      break;
    case 4:
      decode_rows<N, 4>(stored, keys, block, in_block, lane, x);
      break;
    default:
      decode_rows<N, 8>(stored, keys, block, in_block, lane, x);
  }
  const std::int64_t out =
      ((std::int64_t{sequence} * cache.kv_heads + head) * row_capacity + first) * dim;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (first + r >= end) return;
    if (undoes)
      undo(cache, keys ? spec.key : spec.value, side, head, block, in_block + r, lane, x[r]);
#pragma unroll
    for (int i = 0; i < N; ++i) store_number(to, out + r * dim + 32 * i + lane, type, x[r][i]);
  }
}

template <int N>
void launch(const CacheView& cache, const EncodeSpec* spec, void* key, void* value, Type type,
            std::int64_t row_capacity, Stream stream) {
  if (row_capacity <= 0 || cache.kv_heads <= 0 || cache.batch <= 0) return;
  constexpr int kMostHeads = 32767, kMostSequences = 65535;  // of a grid
  if (cache.kv_heads > kMostHeads || cache.batch > kMostSequences)
    throw std::invalid_argument("dequantize: more work than one launch holds");
  const dim3 grid(static_cast<unsigned>((row_capacity + kWarps * kRows - 1) / (kWarps * kRows)),
                  static_cast<unsigned>(2 * cache.kv_heads), static_cast<unsigned>(cache.batch));
  dequantize_kernel<N><<<grid, 32 * kWarps, 0, stream>>>(
      cache, spec ? *spec : EncodeSpec{}, spec != nullptr, key, value, type, row_capacity);
  KVLAB_CUDA(cudaGetLastError());
}

}  // namespace

void dequantize(const CacheView& cache, const EncodeSpec* spec, void* key, void* value, Type type,
                std::int64_t row_capacity, Stream stream) {
  if (const auto reason = refusal(cache.format))
    throw std::invalid_argument("dequantize: " + *reason);
  switch (cache.format.dim) {
    case 64:
      return launch<2>(cache, spec, key, value, type, row_capacity, stream);
    case 128:
      return launch<4>(cache, spec, key, value, type, row_capacity, stream);
    default:
      return launch<8>(cache, spec, key, value, type, row_capacity, stream);
  }
}

}  // namespace kvlab::kernels::cuda
