#pragma once

#include <cmath>

#include "cpu/row_ops.h"

/// A token's norm (contract section 4.2).
namespace kvlab::kernels::cpu {

/// What is summed over heads, or taken of one head, before the root: [count] of rows [count, dim].
inline void measure(const RowOps& ops, TokenScale scale, const float* rows, int count, int dim,
                    double* measures) {
  if (scale == TokenScale::l2_heads || scale == TokenScale::l2_head) {
    ops.square_sums(rows, count, dim, measures);
    return;
  }
  for (int row = 0; row < count; ++row, rows += dim) {
    double most = 0;
    double sum = 0;
    for (int c = 0; c < dim; ++c) {
      const double size = std::fabs(static_cast<double>(rows[c]));
      if (size > most || size != size) most = size;
      sum += size;
    }
    measures[row] = scale == TokenScale::max_head ? most : sum / dim;
  }
}

/// The number that is stored for a measured scale: 0, before or after rounding, is 1.
inline float stored_norm(double measured, TokenScale scale, bool inverse, Type type) {
  if (scale == TokenScale::l2_heads || scale == TokenScale::l2_head) measured = std::sqrt(measured);
  if (measured == 0) return 1.0f;
  const float stored = round_to(static_cast<float>(inverse ? 1.0 / measured : measured), type);
  return stored == 0 ? 1.0f : stored;
}

}  // namespace kvlab::kernels::cpu
