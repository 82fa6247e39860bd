#pragma once

#include "encode_job.cuh"
#include "warp_row.cuh"
#include "zero_fill.cuh"

/// The encoder's stages, each by all threads of a thread block; a warp has a row of d = 32·N
/// channels at a time.
namespace kvlab::kernels::cuda {

/// Shared memory of a thread block.
struct Scratch {
  std::uint32_t* words;  // [unit tiles, words of a tile]: codes as they lie in the block
  double* square_sums;   // [unit]: of tokens, over all heads
  float* rows;           // [unit, d] before the grid; only where groups run along tokens
};

/// A token less the centre, from the step's tensor or, for older tokens, from the recent ring.
template <int N>
__device__ void load_row(const Job& job, int head, int index, int lane, float (&x)[N]) {
  constexpr int dim = 32 * N;
  const CacheView& cache = job.cache;
  const bool key = job.side == Side::key;
  const int token = job.start + index;
  const void* array = key ? job.source.key : job.source.value;
  Type type = job.source.type;
  std::int64_t at = job.sequence * job.source.batch_stride + head * job.source.head_stride +
                    (token - job.first) * job.source.token_stride;
  if (!array || token < job.first) {
    array = key ? cache.recent_key : cache.recent_value;
    type = cache.format.window;
    at = job.sequence * cache.recent_stride +
         (std::int64_t{head} * cache.recent_capacity + token % cache.recent_capacity) * dim;
  }
#pragma unroll
  for (int i = 0; i < N; ++i) x[i] = load_number(array, at + 32 * i + lane, type);
  if (!job.spec.center) return;
#pragma unroll
  for (int i = 0; i < N; ++i) x[i] = add(x[i], -job.spec.center[head * dim + 32 * i + lane]);
}

/// Whether a row's scale is taken before it is rotated: an L2 norm survives a Hadamard rotation,
/// and rounds less.
__device__ inline bool measures_first(const SideEncode& spec) {
  const bool l2 = spec.scale == TokenScale::l2_heads || spec.scale == TokenScale::l2_head;
  return spec.scale_first || (l2 && spec.rotation.kind != Rotation::Kind::dense);
}

/// The number by which a token is divided, before it is rounded; the squares' sum over all heads is
/// given.
template <int N>
__device__ double scale_measure(TokenScale kind, const float (&x)[N], double all_heads) {
  float largest_size = 0.0f;
  double sum = 0.0;
  switch (kind) {
    case TokenScale::l2_heads:
      return sqrt(all_heads);
    case TokenScale::l2_head:
      return sqrt(square_sum(x));
    case TokenScale::max_head:
#pragma unroll
      for (int i = 0; i < N; ++i) largest_size = most(largest_size, fabsf(x[i]));
      return warp_most(largest_size);
    case TokenScale::mean_abs_head:
#pragma unroll
      for (int i = 0; i < N; ++i) sum += fabsf(x[i]);
      return warp_sum(sum) / (32 * N);
    case TokenScale::none:
      break;
  }
  return 1.0;
}

/// Adds the squares of one head to the tokens' sums.
template <int N>
__device__ void add_squares(const Job& job, int head, const Scratch& scratch) {
  const int lane = threadIdx.x % 32;
  for (int t = job.from + threadIdx.x / 32; t < job.to; t += blockDim.x / 32) {
    float x[N];
    load_row(job, head, t, lane, x);
    if (!measures_first(job.spec)) rotate(job.spec.rotation, head, false, lane, x);
    const double sum = square_sum(x);
    double& total = scratch.square_sums[t - job.unit_begin];
    if (lane == 0) total = head == 0 ? sum : total + sum;
  }
}

template <int N>
__device__ void divide_row(const Format& format, float scale, float (&x)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i)
    x[i] = format.norm_inverse ? multiply(x[i], scale) : divide(x[i], scale);
}

/// ((x − centre)·R)/scale of a loaded row; the scale is stored.
template <int N>
__device__ void transform_row(const Job& job, const Scratch& scratch, std::uint8_t* block, int head,
                              int index, int lane, float (&x)[N]) {
  const SideEncode& spec = job.spec;
  const Format& format = job.cache.format;
  if (job.side == Side::value || spec.scale == TokenScale::none) {
    rotate(spec.rotation, head, false, lane, x);
    return;
  }
  const double all_heads =
      spec.scale == TokenScale::l2_heads ? scratch.square_sums[index - job.unit_begin] : 0.0;
  const auto measured = [&] {
    return stored_scale(scale_measure(spec.scale, x, all_heads), format.norm_type,
                        format.norm_inverse);
  };
  float scale = 1.0f;
  if (measures_first(spec)) scale = measured();
  if (spec.scale_first) divide_row(format, scale, x);
  rotate(spec.rotation, head, false, lane, x);
  if (!measures_first(spec)) scale = measured();
  if (!spec.scale_first) divide_row(format, scale, x);
  if (lane == 0)
    store_number(block + job.at.norm, norm_index(index - job.block_begin), format.norm_type, scale);
}

template <int N>
__device__ void put_code(const Job& job, const Scratch& scratch, int index, int channel, int code) {
  const Place place =
      code_place<32 * N>(job.side, job.format.bits, index - job.unit_begin, channel);
  atomicOr(scratch.words + place.byte / 4, static_cast<std::uint32_t>(code) << place.bit);
}

// Out of line: unrolled over a row they would be most of the kernel.
__device__ __noinline__ inline GroupParams group_params(const Grid& grid, float lo, float hi) {
  return params_of(grid, lo, hi);
}
__device__ __noinline__ inline int group_code(const Grid& grid, const GroupParams& params,
                                              float x) {
  return code_of(grid, params, x);
}

/// Codes and parameters of a row whose groups run along channels.
template <int N>
__device__ void store_row(const Job& job, const Scratch& scratch, std::uint8_t* block, int index,
                          int lane, float (&x)[N]) {
  const int held = job.format.group / 32;  // elements of a group in a lane
  GroupParams params;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    if (i % held == 0) {
      if (job.spec.clip == Clip::group) {
        const float threshold = order_statistic(x, i, held, job.spec.clip_index);
#pragma unroll
        for (int j = 0; j < N; ++j) {
          if (j >= i && j < i + held) x[j] = clamped(x[j], threshold);
        }
      }
      float lo = x[i];
      float hi = x[i];
#pragma unroll
      for (int j = 0; j < N; ++j) {
        if (j <= i || j >= i + held) continue;
        lo = least(lo, x[j]);
        hi = most(hi, x[j]);
      }
      params = group_params(job.spec.grid, warp_least(lo), warp_most(hi));
      if (lane == 0) store_params(job, block, index - job.block_begin, 32 * i, params);
    }
    put_code<N>(job, scratch, index, 32 * i + lane, group_code(job.spec.grid, params, x[i]));
  }
}

/// All tokens of the unit as far as a token alone decides.
template <int N>
__device__ void store_rows(const Job& job, const Scratch& scratch, std::uint8_t* block, int head) {
  const int lane = threadIdx.x % 32;
  const SideEncode& spec = job.spec;
  for (int t = job.from + threadIdx.x / 32; t < job.to; t += blockDim.x / 32) {
    float x[N];
    load_row(job, head, t, lane, x);
    transform_row(job, scratch, block, head, t, lane, x);
    if (spec.clip == Clip::row || spec.clip == Clip::calibrated) {
      const float threshold = spec.clip == Clip::row ? order_statistic(x, 0, N, spec.clip_index)
                                                     : spec.thresholds[head];
#pragma unroll
      for (int i = 0; i < N; ++i) x[i] = clamped(x[i], threshold);
    }
    if (job.format.axis == Axis::token) {
      store_row(job, scratch, block, t, lane, x);
    } else {
#pragma unroll
      for (int i = 0; i < N; ++i)
        scratch.rows[(t - job.unit_begin) * 32 * N + 32 * i + lane] = x[i];
    }
  }
}

/// The magnitude of place `index` in ascending order among `count` numbers, `stride` apart.
__device__ inline float order_statistic(const float* x, int count, int stride, int index) {
  std::uint32_t found = 0;
  for (int bit = 30; bit >= 0; --bit) {
    const std::uint32_t candidate = found | 1u << bit;
    int below = 0;
    for (int i = 0; i < count; ++i) below += (bits_of(x[i * stride]) & 0x7fffffffu) < candidate;
    if (below <= index) found = candidate;
  }
  return float_of(found);
}

/// Codes and parameters of groups that run along tokens: a thread has a channel.
template <int N>
__device__ void store_columns(const Job& job, const Scratch& scratch, std::uint8_t* block) {
  constexpr int dim = 32 * N;
  const int group = job.format.group;
  for (int c = threadIdx.x; c < dim; c += blockDim.x) {
    for (int first = job.from; first + group <= job.to; first += group) {
      const float* x = scratch.rows + (first - job.unit_begin) * dim + c;
      const bool clips = job.spec.clip == Clip::group;
      const float threshold = clips ? order_statistic(x, group, dim, job.spec.clip_index) : 0.0f;
      const auto clipped = [&](int i) {
        return clips ? clamped(x[i * dim], threshold) : x[i * dim];
      };
      float lo = clipped(0);
      float hi = lo;
      for (int i = 1; i < group; ++i) {
        lo = least(lo, clipped(i));
        hi = most(hi, clipped(i));
      }
      const GroupParams params = group_params(job.spec.grid, lo, hi);
      store_params(job, block, first - job.block_begin, c, params);
      for (int i = 0; i < group; ++i) {
        put_code<N>(job, scratch, first + i, c, group_code(job.spec.grid, params, clipped(i)));
      }
    }
  }
}

/// Words of the unit's tiles before its codes are put in: zero, but for the older tokens of a tile
/// begun earlier.
template <int N>
__device__ void prepare_words(const Job& job, const Scratch& scratch, const std::uint8_t* codes) {
  constexpr int dim = 32 * N;
  const int count = tile_bytes(dim, job.format.bits) / 4;
  const int tile = (job.from - job.unit_begin) / kTile;
  const bool begun = job.from % kTile != 0;
  const auto* old = reinterpret_cast<const std::uint32_t*>(codes);
  const int total = (job.unit_end - job.unit_begin) / kTile * count;
  for (int i = threadIdx.x; i < total; i += blockDim.x) {
    scratch.words[i] = begun && i / count == tile ? old[i] : 0u;
  }
  __syncthreads();
  if (!begun) return;
  const int last = job.from / kTile * kTile + kTile;
  const std::uint32_t mask = (1u << job.format.bits) - 1u;
  for (int i = threadIdx.x; i < (last - job.from) * dim; i += blockDim.x) {
    const Place place =
        code_place<dim>(job.side, job.format.bits, job.from - job.unit_begin + i / dim, i % dim);
    atomicAnd(scratch.words + place.byte / 4, ~(mask << place.bit));
  }
  __syncthreads();
}

/// The unit of one head.
template <int N>
__device__ void encode_head(const Job& job, const Scratch& scratch, int head) {
  std::uint8_t* block = block_of(job, head);
  const int words = tile_bytes(32 * N, job.format.bits) / 4;
  std::uint8_t* codes = block + sections_of(job.at, job.side).codes +
                        (job.unit_begin - job.block_begin) / kTile * words * 4;
  prepare_words<N>(job, scratch, codes);
  store_rows<N>(job, scratch, block, head);
  if (job.format.axis == Axis::channel) {
    __syncthreads();
    store_columns<N>(job, scratch, block);
  }
  __syncthreads();
  const int first = (job.from - job.unit_begin) / kTile * words;
  const int last = (job.unit_end - job.unit_begin) / kTile * words;
  for (int i = first + threadIdx.x; i < last; i += blockDim.x) {
    reinterpret_cast<std::uint32_t*>(codes)[i] = scratch.words[i];
  }
  if (job.to < job.unit_end && job.format.axis == Axis::token) {
    zero_params(job, block, job.to - job.block_begin, job.unit_end - job.block_begin);
  }
  zero_rest(job, block);
  __syncthreads();  // the next head takes the same shared memory
}

}  // namespace kvlab::kernels::cuda
