#pragma once

#include "cpu/row_ops.h"

namespace kvlab::kernels::cpu {

/// Rows of one KV head times R, or times Rᵀ. `scratch` holds one row.
inline void rotate(const RowOps& ops, const Rotation& rotation, int head, bool transposed,
                   float* rows, int count, int dim, float* scratch) {
  switch (rotation.kind) {
    case Rotation::Kind::none:
      return;
    case Rotation::Kind::hadamard:  // its own transpose
      ops.hadamard(rows, count, dim);
      return;
    case Rotation::Kind::dense: {
      const std::int64_t matrix = rotation.per_head ? static_cast<std::int64_t>(dim) * dim : 0;
      ops.product(rows, count, dim, rotation.matrix + head * matrix, transposed, scratch);
      return;
    }
  }
}

}  // namespace kvlab::kernels::cpu
