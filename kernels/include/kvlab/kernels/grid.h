#pragma once

#include <cmath>

#include "kvlab/kernels/float_bits.h"

/// Scalar arithmetic of the uniform grids (contract section 4.2), float32 with one rounding an
/// operation. Written apart from core/quant on purpose: each checks the other.
namespace kvlab::kernels {

/// How a side's numbers become codes.
struct Grid {
  int bits = 2;
  Zero zero = Zero::value;
  bool integer_zero = false;  // Zero::offset: rounded_zero, else code_offset
  bool half_up = false;  // ties of codes go up, else to even; an integer zero is always half-even
  Type params = Type::f16;
  float range_ratio = 1.0f;        // clip_kind: range
  float levels[4] = {0, 0, 0, 0};  // Zero::codebook, ascending
};

/// Stored parameters of a group, both already rounded to their type.
struct GroupParams {
  float scale = 1.0f;
  float zero = 0.0f;
  bool flat = false;
};

// The device compiler would fuse these; codes must come out equal everywhere.
KVLAB_HD inline float add(float a, float b) {
#ifdef __CUDA_ARCH__
  return __fadd_rn(a, b);
#else
  return a + b;
#endif
}
KVLAB_HD inline float multiply(float a, float b) {
#ifdef __CUDA_ARCH__
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}
KVLAB_HD inline float divide(float a, float b) {
#ifdef __CUDA_ARCH__
  return __fdiv_rn(a, b);
#else
  return a / b;
#endif
}

/// Largest magnitude of a symmetric code.
KVLAB_HD constexpr int symmetric_reach(int bits) { return (1 << (bits - 1)) - 1; }

KVLAB_HD constexpr int largest_code(const Grid& grid) {
  return grid.zero == Zero::none ? 2 * symmetric_reach(grid.bits) : (1 << grid.bits) - 1;
}

/// Parameters of a group whose clipped elements reach from lo to hi.
KVLAB_HD inline GroupParams params_of(const Grid& grid, float lo, float hi) {
  if (grid.range_ratio != 1.0f) {
    lo = multiply(lo, grid.range_ratio);
    hi = multiply(hi, grid.range_ratio);
  }
  const float limit = largest(grid.params);
  lo = lo > limit ? limit : lo < -limit ? -limit : lo;
  hi = hi > limit ? limit : hi < -limit ? -limit : hi;
  GroupParams params;
  if (grid.zero == Zero::none || grid.zero == Zero::codebook) {
    const float reach = -lo > hi ? -lo : hi;
    const float steps =
        grid.zero == Zero::none ? static_cast<float>(symmetric_reach(grid.bits)) : 1.0f;
    params.scale = round_to(divide(reach, steps), grid.params);
    params.flat = params.scale == 0.0f;
    if (params.flat) params.scale = 1.0f;
    return params;
  }
  const auto steps = static_cast<float>((1 << grid.bits) - 1);
  params.scale = round_to(divide(add(hi, -lo), steps), grid.params);
  params.flat = hi == lo || params.scale == 0.0f;
  const float stored_lo = round_to(lo, grid.params);
  if (grid.zero == Zero::value) {
    params.zero = stored_lo;
    return params;
  }
  // A flat group stores its value as one step from zero.
  if (params.flat) params.scale = stored_lo == 0.0f ? 1.0f : std::fabs(stored_lo);
  const float origin = divide(-(params.flat ? stored_lo : lo), params.scale);
  params.zero = round_to(grid.integer_zero ? std::nearbyint(origin) : origin, grid.params);
  return params;
}

/// The code before it is limited to 0 … largest_code, as a whole float; NaN for NaN.
KVLAB_HD inline float unlimited_code(const Grid& grid, const GroupParams& params, float x) {
  const auto rounded = [&](float v) {
    return grid.half_up ? std::floor(add(v, 0.5f)) : std::nearbyint(v);
  };
  switch (grid.zero) {
    case Zero::none:
      return add(rounded(divide(x, params.scale)), static_cast<float>(symmetric_reach(grid.bits)));
    case Zero::value:
      if (params.flat) return 0.0f;
      return rounded(divide(add(x, -params.zero), params.scale));
    case Zero::offset:
      if (grid.integer_zero) return add(rounded(divide(x, params.scale)), params.zero);
      if (params.flat) return 0.0f;
      return rounded(add(divide(x, params.scale), params.zero));
    case Zero::codebook: {
      const float place = divide(x, params.scale);
      float code = 0.0f;  // a tie between two levels goes to the upper one
      for (int i = 0; i < 3; ++i) {
        if (place >= multiply(0.5f, add(grid.levels[i], grid.levels[i + 1])))
          code = static_cast<float>(i + 1);
      }
      return code;
    }
  }
  return 0.0f;
}

KVLAB_HD inline int code_of(const Grid& grid, const GroupParams& params, float x) {
  const float code = unlimited_code(grid, params, x);
  const auto most = static_cast<float>(largest_code(grid));
  return code > most ? static_cast<int>(most) : code > 0.0f ? static_cast<int>(code) : 0;  // NaN: 0
}

KVLAB_HD inline float value_of(const Grid& grid, const GroupParams& params, int code) {
  const auto c = static_cast<float>(code);
  switch (grid.zero) {
    case Zero::none:
      return multiply(add(c, -static_cast<float>(symmetric_reach(grid.bits))), params.scale);
    case Zero::value:
      return add(multiply(c, params.scale), params.zero);
    case Zero::offset:
      return multiply(add(c, -params.zero), params.scale);
    case Zero::codebook:
      return multiply(grid.levels[code & 3], params.scale);
  }
  return 0.0f;
}

}  // namespace kvlab::kernels
