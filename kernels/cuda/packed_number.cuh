#pragma once

#include "kvlab/kernels/cache.h"

/// One number of a packed block at a time: what the run-time kernels and rare paths read.
namespace kvlab::kernels::cuda {

__device__ __forceinline__ int code_at(const std::uint8_t* codes, Place place, int bits) {
  const std::uint32_t word = *reinterpret_cast<const std::uint32_t*>(codes + place.byte);
  return static_cast<int>(word >> place.bit & ((1u << bits) - 1u));
}

/// The grid of a side as far as decoding needs it.
__device__ __forceinline__ Grid decoding_grid(const SideFormat& side, const float (&levels)[4]) {
  Grid grid;
  grid.bits = side.bits;
  grid.zero = side.zero;
  grid.params = side.params;
  for (int i = 0; i < 4; ++i) grid.levels[i] = levels[i];
  return grid;
}

/// Decoded number of a side, before norm and rotation are undone.
__device__ __forceinline__ float value_at(const Format& format, const SideFormat& side,
                                          const Grid& grid, const std::uint8_t* codes,
                                          const std::uint8_t* scales, const std::uint8_t* zeros,
                                          Place place, int token, int channel) {
  const int index = param_index(format, side, token, channel);
  GroupParams params;
  params.scale = load_number(scales, index, side.params);
  if (stores_zero(side)) params.zero = load_number(zeros, index, side.params);
  return value_of(grid, params, code_at(codes, place, side.bits));
}

__device__ __forceinline__ float key_at(const CacheView& cache, const Layout& at, const Grid& grid,
                                        const std::uint8_t* block, int token, int channel) {
  const Format& f = cache.format;
  return value_at(f, f.key, grid, block + at.key_codes, block + at.key_scale, block + at.key_zero,
                  key_place(f.dim, f.key.bits, token, channel), token, channel);
}

__device__ __forceinline__ float value_at(const CacheView& cache, const Layout& at,
                                          const Grid& grid, const std::uint8_t* block, int token,
                                          int channel) {
  const Format& f = cache.format;
  return value_at(f, f.value, grid, block + at.value_codes, block + at.value_scale,
                  block + at.value_zero, value_place(f.dim, f.value.bits, token, channel), token,
                  channel);
}

/// What a decoded key is multiplied by.
__device__ __forceinline__ float norm_at(const Format& f, const Layout& at,
                                         const std::uint8_t* block, int token) {
  if (f.norm == Norm::none) return 1.0f;
  const float norm = load_number(block + at.norm, norm_index(token), f.norm_type);
  return f.norm_inverse ? 1.0f / norm : norm;
}

}  // namespace kvlab::kernels::cuda
