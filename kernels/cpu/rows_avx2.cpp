#include "cpu/row_ops.h"

namespace kvlab::kernels::cpu {
const RowOps* avx2_rows() { return nullptr; }
}  // namespace kvlab::kernels::cpu
