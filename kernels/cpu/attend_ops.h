#pragma once

#include <cstdint>

#include "kvlab/kernels/cache.h"

/// Attention's inner stages for one block or one stretch of a window. Rows are (query token, query
/// head of the KV head); logits and weights are [rows, stride].
namespace kvlab::kernels::cpu {

/// The key or value half of a block. Values of codes: level·scale + zero (after grid arithmetic),
/// keys times the token's norm.
struct PackedSide {
  const Format* format;
  const SideFormat* side;
  const std::uint8_t* codes;
  const std::uint8_t* scale;
  const std::uint8_t* zero;  // null where none is stored
  const std::uint8_t* norm;  // null for values and where there is none
  const float* levels;       // four, for Zero::codebook
};

struct AttendOps {
  /// logits[r][t] = norm_t · (query_r · k̂_t) for tokens 0 … count − 1 of a block. query: [rows,
  /// dim], rotated and scaled.
  void (*packed_logits)(const PackedSide& keys, int count, const float* query, int rows,
                        float* logits, int stride);

  /// sums[r] += Σ_t weights[r][t] · v̂_t.
  void (*packed_sums)(const PackedSide& values, int count, const float* weights, int stride,
                      int rows, float* sums);

  /// The same for tokens of a window, 16-bit rows given by their addresses.
  void (*window_logits)(const std::uint16_t* const* keys, int count, int dim, Type type,
                        const float* query, int rows, float* logits, int stride);
  void (*window_sums)(const std::uint16_t* const* values, int count, int dim, Type type,
                      const float* weights, int stride, int rows, float* sums);

  /// The largest of n logits and `most`; NaN does not count.
  float (*largest)(const float* logits, int n, float most);

  /// Replaces n logits by exp(logit − most) and returns their sum.
  float (*weights)(float* logits, int n, float most);
};

const AttendOps& portable_attend();
const AttendOps* avx2_attend();  // null where they are not compiled
const AttendOps& attend_ops();   // those of chosen_isa()

}  // namespace kvlab::kernels::cpu
