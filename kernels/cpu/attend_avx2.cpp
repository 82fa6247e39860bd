#include "cpu/attend_ops.h"

namespace kvlab::kernels::cpu {
const AttendOps* avx2_attend() { return nullptr; }
}  // namespace kvlab::kernels::cpu
