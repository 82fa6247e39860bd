#pragma once

#include "fast_params.cuh"
#include "tile_product.cuh"

/// Norms of a warp's 16 tokens of keys: made, stored and taken out of the numbers.
namespace kvlab::kernels::cuda {

__device__ __forceinline__ float root_fast(float x) {
  float y;
  asm("sqrt.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ bool has_norms(const FastJob& job) {
  return job.side == Side::key && job.spec.scale != TokenScale::none;
}

/// A norm as it is stored.
template <class Float>
__device__ __forceinline__ float rounded_norm(const Format& format, Float norm) {
  // The usual case as constants takes a quarter of the instructions.
  if (format.norm_type == Type::f16 && !format.norm_inverse) {
    return stored_scale(norm, Type::f16, false);
  }
  return stored_scale(norm, format.norm_type, format.norm_inverse);
}

/// The norm of row lane % 2 as it is stored, of the tokens as they came; read where it runs over
/// all heads and norm_kernel was there before. `first`: the warp's place in the stage.
template <bool kBf16, Product kProduct>
__device__ __forceinline__ float norm_of(const FastJob& job, const unsigned char* stage, int first,
                                         const RowPlace& place, int lane) {
  const Format& format = job.format;
  if (job.spec.scale == TokenScale::l2_heads) {
    if (!place.there) return 1.0f;
    return load_number(place.block + job.at.norm, norm_index(place.token), format.norm_type);
  }
  if constexpr (kProduct == Product::none) {
    double sums[2];
    square_sums_exactly<kBf16>(stage, first, lane, sums);
    return rounded_norm(format, sqrt(lane % 2 ? sums[1] : sums[0]));
  } else {
    float sums[2];
    square_sums_by_product<kBf16>(stage, first, lane, sums);
    return rounded_norm(format, root_fast(lane % 2 ? sums[1] : sums[0]));
  }
}

/// Stores the norms of the warp's tokens, of which this lane has row lane % 2, and returns what the
/// numbers of that row are to be multiplied by: also 1/√d of a rotation.
template <bool kRotated>
__device__ __forceinline__ float store_norm(const FastJob& job, const RowPlace& place, float norm,
                                            int lane) {
  const Format& format = job.format;
  if (lane % 4 < 2 && place.writes) {
    std::uint8_t* norms = place.block + job.at.norm;
    const float stored = place.there ? norm : 0.0f;
    if (format.norm_type == Type::f16) {
      store_number(norms, norm_index(place.token), Type::f16, stored);
    } else {
      store_number(norms, norm_index(place.token), format.norm_type, stored);
    }
  }
  // Untouched numbers are divided, as their codes must be exact.
  if (!kRotated) return norm;
  return format.norm_inverse ? job.factor * norm : __fdividef(job.factor, norm);
}

/// An untouched number without its token's norm.
__device__ __forceinline__ float without_norm(const FastJob& job, float x, float norm) {
  return job.format.norm_inverse ? multiply(x, norm) : divide(x, norm);
}

/// The same of rotated tokens, from a tile by tokens.
__device__ __forceinline__ float norm_of_tile(const FastJob& job, const Tile& tile, int lane) {
  float sums[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float part[4] = {};
#pragma unroll
    for (int i = 0; i < 4 * kFragments; ++i) {
      const float x = tile.at(i / 4, i / 2 % 2, r, i % 2);
      part[i % 4] += x * x;
    }
    float sum = (part[0] + part[1]) + (part[2] + part[3]);
    sum += __shfl_xor_sync(kAllLanes, sum, 1);
    sums[r] = sum + __shfl_xor_sync(kAllLanes, sum, 2);
  }
  return rounded_norm(job.format, root_fast((lane % 2 ? sums[1] : sums[0]) * job.factor_square));
}

}  // namespace kvlab::kernels::cuda
