#pragma once

#include "attend_place.cuh"

/// Rotations of rows in shared memory, before and after attention.
namespace kvlab::kernels::cuda {

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

}  // namespace kvlab::kernels::cuda
