#include "attend_runtime.h"
#include "attend_window.cuh"
#include "check.h"

/// The run-time kernel: any format, on the CUDA cores in float32. What the table of tuned instances
/// lacks goes here. A lane (g, t) decodes what the storage order gives it: for keys tokens g and g
/// + 8 of a tile and the channels 8t … 8t+7 of every 32, for values channels 16m + g (+8) and four
/// tokens.
namespace kvlab::kernels::cuda {
namespace {

constexpr int kRows = kRuntimeRows;
constexpr int kWarps = kRuntimeWarps;

template <int kDim>
struct Shared {
  alignas(16) float queries[2 * kRows * kRowStride<kDim>];
  float outputs[kWarps * kRows * kOutputStride<kDim>];
  float window_outputs[kWarps * kRows * kOutputStride<kDim>];
  float weights[kWarps][kRows][kTile];
};

/// Calls body(r, h, code) for every code that this lane holds of a tile.
template <int kDim, typename Body>
__device__ __forceinline__ void for_codes(const std::uint8_t* codes, int bits, int tile, int lane,
                                          Body&& body) {
  for (int r = 0; r < kDim / 4; ++r) {
#pragma unroll
    for (int h = 0; h < 2; ++h)
      body(r, h, code_at(codes, place_in_tile(kDim, bits, tile, lane, r, h), bits));
  }
}

__device__ __forceinline__ float parameter(const std::uint8_t* numbers, int index, Type type) {
  return load_number(numbers, index, type);
}

template <int kDim>
__device__ void history_part(const AttendParams& p, const BlockPlace& at,
                             const QueryTile<kDim>& queries, Shared<kDim>& shared, int warp,
                             int lane) {
  const CacheView& cache = p.cache;
  const Format& f = cache.format;
  const Layout layout = layout_of(f);
  const int per_block = block_tokens(f), g = lane / 4, t = lane % 4;
  const int end = (at.ends.key < at.ends.value ? at.ends.key : at.ends.value) - at.begin;
  const int tiles = (end + kTile - 1) / kTile;
  const int chunk = (tiles + at.splits - 1) / at.splits;
  const int first = at.split * chunk, last = min(first + chunk, tiles);
  const float scale = p.args.scale * 1.4426950408889634f;
  const Grid key_grid = decoding_grid(f.key, cache.key_levels),
             value_grid = decoding_grid(f.value, cache.value_levels);

  float output[kRows][kDim / 8] = {};
  float top[kRows], sum[kRows], bias[kRows];
#pragma unroll
  for (int row = 0; row < kRows; ++row) {
    top[row] = kNothing;
    sum[row] = 0.0f;
    bias[row] = center_logit<kDim>(p, at.head, queries.raw + row * kRowStride<kDim>, lane, scale);
  }

  for (int tile = first + warp; tile < last; tile += kWarps) {
    const int token = tile * kTile, in_block = token % per_block;
    const std::uint8_t* block =
        block_at(cache, layout.bytes, at.sequence, at.head, token / per_block);
    float logit[2][kRows] = {};
    for_codes<kDim>(
        block + layout.key_codes, f.key.bits, in_block / kTile, lane, [&](int r, int h, int code) {
          const int half = r % 2, channel = r / 8 * 32 + t * 8 + r / 4 % 2 * 4 + r / 2 % 2 * 2 + h;
          const int index = param_index(f, f.key, in_block + g + 8 * half, channel);
          GroupParams params;
          params.scale = parameter(block + layout.key_scale, index, f.key.params);
          if (stores_zero(f.key))
            params.zero = parameter(block + layout.key_zero, index, f.key.params);
          const float k = value_of(key_grid, params, code);
#pragma unroll
          for (int row = 0; row < kRows; ++row) {
            const float product = queries.rotated[row * kRowStride<kDim> + channel] * k;
            logit[0][row] += half ? 0.0f : product;
            logit[1][row] += half ? product : 0.0f;
          }
        });
    __syncwarp();
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      const int limit = min(end, row_limit(p, at, at.row_tile * kRows + row) - at.begin);
      float high = kNothing;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float& x = logit[half][row];
        x += __shfl_xor_sync(0xffffffffu, x, 1);
        x += __shfl_xor_sync(0xffffffffu, x, 2);
        x = x * scale * norm_at(f, layout, block, in_block + g + 8 * half) + bias[row];
        if (token + g + 8 * half >= limit) x = -INFINITY;
        high = fmaxf(high, x);
      }
      const float new_top = fmaxf(top[row], max_over_rows(high));
      const float shrink = exp2_fast(top[row] - new_top);
      top[row] = new_top;
      sum[row] *= shrink;
#pragma unroll
      for (int i = 0; i < kDim / 8; ++i) output[row][i] *= shrink;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float weight = exp2_fast(logit[half][row] - new_top);
        if (t == 0) {
          sum[row] += weight;
          shared.weights[warp][row][g + 8 * half] = weight;
        }
      }
    }
    __syncwarp();
#pragma unroll
    for (int m = 0; m < kDim / 16; ++m) {
#pragma unroll
      for (int part = 0; part < 8; ++part) {
        const int upper = part % 2, k_half = part / 2 % 2, h = part / 4;
        const int channel = 16 * m + g + 8 * upper, its_token = 2 * t + h + 8 * k_half;
        const int code = code_at(block + layout.value_codes,
                                 place_in_tile(kDim, f.value.bits, in_block / kTile, lane,
                                               4 * m + 2 * k_half + upper, h),
                                 f.value.bits);
        const int index = param_index(f, f.value, in_block + its_token, channel);
        GroupParams params;
        params.scale = parameter(block + layout.value_scale, index, f.value.params);
        if (stores_zero(f.value))
          params.zero = parameter(block + layout.value_zero, index, f.value.params);
        const float v = value_of(value_grid, params, code);
#pragma unroll
        for (int row = 0; row < kRows; ++row) {
          output[row][2 * m + upper] =
              fmaf(shared.weights[warp][row][its_token], v, output[row][2 * m + upper]);
        }
      }
    }
  }

#pragma unroll
  for (int row = 0; row < kRows; ++row) {
    float total = sum[row];
#pragma unroll
    for (int step = 1; step < kWarp; step *= 2) total += __shfl_xor_sync(0xffffffffu, total, step);
    if (lane == 0) {
      float* numbers = shared.outputs + (warp * kRows + row) * kOutputStride<kDim> + kDim;
      numbers[0] = top[row];
      numbers[1] = total;
    }
#pragma unroll
    for (int i = 0; i < kDim / 8; ++i) {
      float x = output[row][i];
      x += __shfl_xor_sync(0xffffffffu, x, 1);
      x += __shfl_xor_sync(0xffffffffu, x, 2);
      if (t == 0) shared.outputs[(warp * kRows + row) * kOutputStride<kDim> + 8 * i + g] = x;
    }
  }
}

template <int kDim>
__global__ void __launch_bounds__(kWarps* kWarp)
    attend_runtime(const __grid_constant__ AttendParams p) {
  extern __shared__ __align__(16) unsigned char memory[];
  auto& shared = *reinterpret_cast<Shared<kDim>*>(memory);
  const int warp = static_cast<int>(threadIdx.x) / kWarp,
            lane = static_cast<int>(threadIdx.x) % kWarp;
  BlockPlace at = block_coordinates(p);
  fill_in_lengths(p, p.cache.tokens[at.sequence], at);
  load_queries<kDim>(p, at, shared.queries, kRows);
  const QueryTile<kDim> queries = rotate_queries<kDim>(p, at, shared.queries, kRows);
  constexpr int kStride = kRows * kOutputStride<kDim>;
  const WarpParts window_parts{shared.window_outputs, kStride};
  if (p.inside || !at.has_history())
    window_part<kDim, kRows>(p, at, queries, window_parts, warp, kWarps);
  if (at.has_history()) history_part<kDim>(p, at, queries, shared, warp, lane);
  finish_block<kDim, kRows>(p, at, {shared.outputs, kStride}, window_parts, shared.queries, kWarps);
}

template <int kDim>
void launch(const AttendParams& p, Stream stream) {
  const dim3 grid(static_cast<unsigned>(p.splits + p.window),
                  static_cast<unsigned>(p.cache.kv_heads * p.row_tiles),
                  static_cast<unsigned>(p.cache.batch));
  const int bytes = static_cast<int>(sizeof(Shared<kDim>));
  static const bool raised = [&] {
    KVLAB_CUDA(cudaFuncSetAttribute(attend_runtime<kDim>,
                                    cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    return true;
  }();
  static_cast<void>(raised);
  attend_runtime<kDim><<<grid, kWarps * kWarp, bytes, stream>>>(p);
  KVLAB_CUDA(cudaGetLastError());
}

}  // namespace

void launch_runtime(const AttendParams& p, Stream stream) {
  switch (p.cache.format.dim) {
    case 64:
      return launch<64>(p, stream);
    case 128:
      return launch<128>(p, stream);
    default:
      return launch<256>(p, stream);
  }
}

}  // namespace kvlab::kernels::cuda
