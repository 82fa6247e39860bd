#pragma once

#include <cstdint>
#include <cstring>

#include "kvlab/kernels/format.h"
#include "kvlab/kernels/host_device.h"

/// 16-bit floating-point numbers by their bits: equal on every machine, no compiler type needed.
/// Rounding is to nearest, ties to even.
namespace kvlab::kernels {

KVLAB_HD inline std::uint32_t bits_of(float x) {
  std::uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

KVLAB_HD inline float float_of(std::uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

KVLAB_HD inline float from_bf16(std::uint16_t bits) {
  return float_of(static_cast<std::uint32_t>(bits) << 16);
}

KVLAB_HD inline std::uint16_t to_bf16(float x) {
  const std::uint32_t bits = bits_of(x);
#ifdef __CUDA_ARCH__
  // One instruction where it gives the same; of NaN it makes another one.
  std::uint16_t rounded;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(rounded) : "f"(x));
  if (x == x) return rounded;
#endif
  if ((bits & 0x7fffffffu) > 0x7f800000u)
    return static_cast<std::uint16_t>(bits >> 16 | 0x40u);  // NaN stays one
  return static_cast<std::uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

KVLAB_HD inline float from_f16(std::uint16_t bits) {
#ifdef __CUDA_ARCH__
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
  return x;
#else
  const std::uint32_t sign = (bits & 0x8000u) << 16;
  const std::uint32_t rest = bits & 0x7fffu;
  if (rest >= 0x7c00u) return float_of(sign | 0x7f800000u | (rest & 0x3ffu) << 13);
  // Shifted into place the exponent lacks 112; a product with 2^112 adds it and is exact for
  // subnormals too.
  return float_of(sign | bits_of(float_of(rest << 13) * float_of(0x77800000u)));
#endif
}

KVLAB_HD inline std::uint16_t to_f16(float x) {
  const std::uint32_t bits = bits_of(x);
#ifdef __CUDA_ARCH__
  std::uint16_t rounded;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(rounded) : "f"(x));
  return x == x ? rounded : static_cast<std::uint16_t>(bits >> 16 & 0x8000u | 0x7e00u);
#else
  const std::uint32_t sign = bits >> 16 & 0x8000u;
  const std::uint32_t rest = bits & 0x7fffffffu;
  if (rest > 0x7f800000u) return static_cast<std::uint16_t>(sign | 0x7e00u);
  if (rest >= 0x477ff000u)
    return static_cast<std::uint16_t>(sign | 0x7c00u);  // 65520 and more round to infinity
  if (rest < 0x38800000u) {
    // Below 2^-14 halves are multiples of 2^-24: adding 1/2 makes the float unit round there.
    const float shifted = float_of(rest) + 0.5f;
    return static_cast<std::uint16_t>(sign | (bits_of(shifted) - 0x3f000000u));
  }
  return static_cast<std::uint16_t>(sign |
                                    ((rest + 0xfffu + (rest >> 13 & 1u) - 0x38000000u) >> 13));
#endif
}

/// Largest finite number of a type.
KVLAB_HD constexpr float largest(Type type) {
  return type == Type::f16 ? 65504.0f : type == Type::bf16 ? 3.38953139e38f : 3.40282347e38f;
}

/// x rounded to the type, beyond its range to its largest finite number. NaN stays NaN.
KVLAB_HD inline float round_to(float x, Type type) {
  const float limit = largest(type);
  const float limited = x > limit ? limit : x < -limit ? -limit : x;
  return type == Type::f16    ? from_f16(to_f16(limited))
         : type == Type::bf16 ? from_bf16(to_bf16(limited))
                              : limited;
}

/// Element `i` of an array of `type`.
KVLAB_HD inline float load_number(const void* array, std::int64_t i, Type type) {
  if (type == Type::f32) return static_cast<const float*>(array)[i];
  const std::uint16_t bits = static_cast<const std::uint16_t*>(array)[i];
  return type == Type::f16 ? from_f16(bits) : from_bf16(bits);
}

KVLAB_HD inline void store_number(void* array, std::int64_t i, Type type, float x) {
  if (type == Type::f32) {
    static_cast<float*>(array)[i] = x;
  } else {
    static_cast<std::uint16_t*>(array)[i] = type == Type::f16 ? to_f16(x) : to_bf16(x);
  }
}

}  // namespace kvlab::kernels
