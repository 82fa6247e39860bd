#pragma once

#include "kvlab/kernels/cache.h"

/// A row of d = 32·N channels held by one warp: lane l has channel 32i + l in element i. float32,
/// one rounding an operation.
namespace kvlab::kernels::cuda {

inline constexpr unsigned kAllLanes = 0xffffffffu;

// Minimum and maximum that keep a NaN, as the reference's do.
__device__ inline float least(float a, float b) {
  float y;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}
__device__ inline float most(float a, float b) {
  float y;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}

__device__ inline float warp_sum(float x) {
  for (int step = 16; step > 0; step /= 2) x = add(x, __shfl_xor_sync(kAllLanes, x, step));
  return x;
}
__device__ inline double warp_sum(double x) {
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(kAllLanes, x, step);
  return x;
}
__device__ inline float warp_least(float x) {
  for (int step = 16; step > 0; step /= 2) x = least(x, __shfl_xor_sync(kAllLanes, x, step));
  return x;
}
__device__ inline float warp_most(float x) {
  for (int step = 16; step > 0; step /= 2) x = most(x, __shfl_xor_sync(kAllLanes, x, step));
  return x;
}

/// x clamped to ±threshold; NaN stays NaN.
__device__ inline float clamped(float x, float threshold) {
  return x > threshold ? threshold : x < -threshold ? -threshold : x;
}

/// 1/√d of a power of two.
KVLAB_HD constexpr float inverse_root(int dim) {
  return dim == 64 ? 0.125f : dim == 128 ? 0.088388347648318447f : 0.0625f;
}

/// x times Sylvester's matrix of size 32·N over √d.
template <int N>
__device__ void hadamard(float (&x)[N], int lane) {
  for (int bit = 1; bit < 32; bit *= 2) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float y = __shfl_xor_sync(kAllLanes, x[i], bit);
      x[i] = lane & bit ? add(y, -x[i]) : add(x[i], y);
    }
  }
#pragma unroll
  for (int bit = 1; bit < N; bit *= 2) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if (i & bit) continue;
      const float a = x[i];
      const float b = x[i | bit];
      x[i] = add(a, b);
      x[i | bit] = add(a, -b);
    }
  }
#pragma unroll
  for (int i = 0; i < N; ++i) x[i] = multiply(x[i], inverse_root(32 * N));
}

/// x·R, or x·Rᵀ, of a row-major R [d, d].
template <int N>
__device__ void product(const float* matrix, bool transposed, int lane, float (&x)[N]) {
  constexpr int dim = 32 * N;
  float y[N] = {};
  for (int j = 0; j < dim; ++j) {
    if (transposed) {
      float sum = 0.0f;
#pragma unroll
      for (int i = 0; i < N; ++i) sum += x[i] * matrix[j * dim + 32 * i + lane];
      sum = warp_sum(sum);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        if (j == 32 * i + lane) y[i] = sum;
      }
      continue;
    }
    float mine = 0.0f;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if (j / 32 == i) mine = x[i];
    }
    const float factor = __shfl_sync(kAllLanes, mine, j % 32);
#pragma unroll
    for (int i = 0; i < N; ++i) y[i] += factor * matrix[j * dim + 32 * i + lane];
  }
#pragma unroll
  for (int i = 0; i < N; ++i) x[i] = y[i];
}

template <int N>
__device__ void rotate(const Rotation& rotation, int head, bool back, int lane, float (&x)[N]) {
  if (rotation.kind == Rotation::Kind::hadamard) hadamard(x, lane);  // its own inverse
  if (rotation.kind == Rotation::Kind::dense) {
    const std::int64_t at = rotation.per_head ? std::int64_t{head} * (32 * N) * (32 * N) : 0;
    product(rotation.matrix + at, back, lane, x);
  }
}

/// Sum of squares over the row. In float64, or a 16-bit norm would now and then round the other
/// way.
template <int N>
__device__ double square_sum(const float (&x)[N]) {
  double sum = 0.0;
#pragma unroll
  for (int i = 0; i < N; ++i) sum += static_cast<double>(x[i]) * x[i];
  return warp_sum(sum);
}

/// The magnitude of place `index` in ascending order among elements [first, first + count) of all
/// lanes, exactly.
template <int N>
__device__ float order_statistic(const float (&x)[N], int first, int count, int index) {
  // The largest pattern of 31 bits that has at most `index` magnitudes below it, bit by bit.
  std::uint32_t found = 0;
  for (int bit = 30; bit >= 0; --bit) {
    const std::uint32_t candidate = found | 1u << bit;
    int below = 0;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const bool counts = i >= first && i < first + count;
      const bool smaller = (bits_of(x[i]) & 0x7fffffffu) < candidate;
      below += __popc(__ballot_sync(kAllLanes, counts && smaller));
    }
    if (below <= index) found = candidate;
  }
  return float_of(found);
}

/// A token's scale as it is stored: rounded to its type; 0, before or after rounding, is 1.
template <class Float>
KVLAB_HD inline float stored_scale(Float measure, Type type, bool inverse) {
  if (measure == Float{0}) return 1.0f;
  const float rounded = round_to(static_cast<float>(inverse ? Float{1} / measure : measure), type);
  return rounded == 0.0f ? 1.0f : rounded;
}

}  // namespace kvlab::kernels::cuda
