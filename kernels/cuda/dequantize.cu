#include <stdexcept>

#include "check.h"
#include "encode_job.cuh"
#include "kvlab/kernels/cuda.h"
#include "packed_number.cuh"
#include "warp_row.cuh"

namespace kvlab::kernels::cuda {
namespace {

constexpr int kWarps = 8;

/// One token as its codes say.
template <int N>
__device__ void decode_row(const CacheView& cache, Side side, const std::uint8_t* block, int token,
                           int lane, float (&x)[N]) {
  const Format& format = cache.format;
  const SideFormat& stored = side == Side::key ? format.key : format.value;
  const Sections at = sections_of(layout_of(format), side);
  const Grid grid =
      decoding_grid(stored, side == Side::key ? cache.key_levels : cache.value_levels);
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const int channel = 32 * i + lane;
    const Place place = code_place<32 * N>(side, stored.bits, token, channel);
    x[i] = value_at(format, stored, grid, block + at.codes, block + at.scale, block + at.zero,
                    place, token, channel);
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

/// A warp has a token of a side and head of a sequence.
template <int N>
__global__ void __launch_bounds__(32 * kWarps)
    dequantize_kernel(const __grid_constant__ CacheView cache,
                      const __grid_constant__ EncodeSpec spec, bool undoes, void* key, void* value,
                      Type type, std::int64_t row_capacity) {
  constexpr int dim = 32 * N;
  const int lane = threadIdx.x % 32;
  std::int64_t index = std::int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  const std::int64_t row = index % row_capacity;
  index /= row_capacity;
  const int head = static_cast<int>(index % cache.kv_heads);
  index /= cache.kv_heads;
  const Side side = index % 2 == 0 ? Side::key : Side::value;
  const int sequence = static_cast<int>(index / 2);
  void* to = side == Side::key ? key : value;
  if (sequence >= cache.batch || !to) return;
  const Span span = span_of(cache.rule, cache.tokens[sequence], kAllTokens, side);
  if (row >= span.end) return;

  const int held = block_tokens(cache.format);
  const int at = static_cast<int>(row);
  const std::uint8_t* block =
      block_at(cache, layout_of(cache.format).bytes, sequence, head, at / held);
  float x[N];
  decode_row(cache, side, block, at % held, lane, x);
  if (undoes)
    undo(cache, side == Side::key ? spec.key : spec.value, side, head, block, at % held, lane, x);
  const std::int64_t out =
      ((std::int64_t{sequence} * cache.kv_heads + head) * row_capacity + row) * dim;
#pragma unroll
  for (int i = 0; i < N; ++i) store_number(to, out + 32 * i + lane, type, x[i]);
}

template <int N>
void launch(const CacheView& cache, const EncodeSpec* spec, void* key, void* value, Type type,
            std::int64_t row_capacity, Stream stream) {
  const std::int64_t rows = row_capacity * cache.kv_heads * 2 * cache.batch;
  const std::int64_t blocks = (rows + kWarps - 1) / kWarps;
  if (blocks <= 0) return;
  if (blocks > 0x7fffffff)
    throw std::invalid_argument("dequantize: more work than one launch holds");
  dequantize_kernel<N><<<static_cast<unsigned>(blocks), 32 * kWarps, 0, stream>>>(
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
