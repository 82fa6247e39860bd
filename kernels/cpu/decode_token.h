#pragma once

#include "cpu/attend_ops.h"
#include "cpu/codes.h"
#include "kvlab/kernels/float_bits.h"

namespace kvlab::kernels::cpu {

/// The grid that decodes a side.
inline Grid decoding_grid(const SideFormat& side, const float* levels) {
  Grid grid;
  grid.bits = side.bits;
  grid.zero = side.zero;
  grid.params = side.params;
  for (int i = 0; side.zero == Zero::codebook && i < 4; ++i) grid.levels[i] = levels[i];
  return grid;
}

/// Decoded values [dim] of a block's token, without its norm.
template <Side kind>
void decode_token(const PackedSide& packed, int token, float* out) {
  const Format& format = *packed.format;
  const SideFormat& side = *packed.side;
  const Grid grid = decoding_grid(side, packed.levels);
  std::uint8_t codes[256];
  unpack_function<kind>(format.dim, side.bits)(packed.codes, token, codes);
  const int run = side.axis == Axis::token ? side.group : 1;  // channels that share parameters
  for (int c = 0; c < format.dim; c += run) {
    const int at = param_index(format, side, token, c);
    GroupParams params;
    params.scale = load_number(packed.scale, at, side.params);
    if (packed.zero != nullptr) params.zero = load_number(packed.zero, at, side.params);
    for (int i = c; i < c + run; ++i) out[i] = value_of(grid, params, codes[i]);
  }
}

/// The halves of a block.
inline PackedSide packed_keys(const CacheView& cache, const Layout& layout,
                              const std::uint8_t* block) {
  const Format& format = cache.format;
  return {&format,
          &format.key,
          block + layout.key_codes,
          block + layout.key_scale,
          stores_zero(format.key) ? block + layout.key_zero : nullptr,
          format.norm == Norm::none ? nullptr : block + layout.norm,
          cache.key_levels};
}

inline PackedSide packed_values(const CacheView& cache, const Layout& layout,
                                const std::uint8_t* block) {
  const Format& format = cache.format;
  return {&format,
          &format.value,
          block + layout.value_codes,
          block + layout.value_scale,
          stores_zero(format.value) ? block + layout.value_zero : nullptr,
          nullptr,
          cache.value_levels};
}

/// The number that a token's decoded key is multiplied by.
inline float norm_factor(const PackedSide& keys, int token) {
  if (keys.norm == nullptr) return 1.0f;
  const float norm = load_number(keys.norm, norm_index(token), keys.format->norm_type);
  return keys.format->norm_inverse ? 1.0f / norm : norm;
}

}  // namespace kvlab::kernels::cpu
