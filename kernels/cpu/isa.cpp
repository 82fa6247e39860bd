#include <cstdlib>
#include <stdexcept>
#include <string>

#include "cpu/attend_ops.h"
#include "cpu/row_ops.h"
#include "kvlab/kernels/cpu.h"

namespace kvlab::kernels::cpu {
namespace {

bool has_avx2() {
#if defined(__x86_64__)
  return avx2_rows() != nullptr && __builtin_cpu_supports("avx2") &&
         __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
#else
  return false;
#endif
}

}  // namespace

Isa chosen_isa() {
  const char* asked = std::getenv("KVLAB_CPU");
  if (asked == nullptr || *asked == '\0') return has_avx2() ? Isa::avx2 : Isa::portable;
  const std::string name = asked;
  if (name == "portable") return Isa::portable;
  if (name != "avx2") {
    throw std::invalid_argument("KVLAB_CPU is '" + name + "', it must be portable or avx2");
  }
  if (!has_avx2()) {
    throw std::invalid_argument("KVLAB_CPU asks for avx2, which this processor or build lacks");
  }
  return Isa::avx2;
}

const RowOps& row_ops() { return chosen_isa() == Isa::avx2 ? *avx2_rows() : portable_rows(); }

const AttendOps& attend_ops() {
  return chosen_isa() == Isa::avx2 ? *avx2_attend() : portable_attend();
}

}  // namespace kvlab::kernels::cpu
