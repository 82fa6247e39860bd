#pragma once

#include "kvlab/kernels/cache.h"
#include "kvlab/kernels/float_bits.h"

/// Addresses of full-precision rows.
namespace kvlab::kernels::cpu {

/// The rows of the sink (or ring) of one sequence and head; row τ (or τ % capacity) is token τ.
struct WindowRows {
  std::uint16_t* begin;
  int capacity;
  int dim;

  std::uint16_t* operator[](int token) const {
    return begin + static_cast<std::int64_t>(token % capacity) * dim;
  }
};

inline std::int64_t window_offset(std::int64_t stride, int capacity, int dim, int sequence,
                                  int head) {
  return sequence * stride + static_cast<std::int64_t>(head) * capacity * dim;
}

inline WindowRows sink_rows(const CacheView& cache, std::uint16_t* side, int sequence, int head) {
  const int dim = cache.format.dim;
  return {side + window_offset(cache.sink_stride, cache.sink_capacity, dim, sequence, head),
          cache.sink_capacity, dim};
}

inline WindowRows recent_rows(const CacheView& cache, std::uint16_t* side, int sequence, int head) {
  const int dim = cache.format.dim;
  return {side + window_offset(cache.recent_stride, cache.recent_capacity, dim, sequence, head),
          cache.recent_capacity, dim};
}

/// Row `index` (from the step's first token) of a source's side.
inline const void* source_row(const TokenSource& source, const void* side, int sequence, int head,
                              int index) {
  const std::int64_t at =
      sequence * source.batch_stride + head * source.head_stride + index * source.token_stride;
  return static_cast<const std::uint8_t*>(side) + at * size_of(source.type);
}

}  // namespace kvlab::kernels::cpu
