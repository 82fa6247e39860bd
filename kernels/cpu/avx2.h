#pragma once

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define KVLAB_AVX2 1

#include <immintrin.h>

#include <cstdint>
#include <utility>

#include "kvlab/kernels/format.h"

/// Small things for the AVX2 files alone. These call no function that another file may also hold:
/// the linker could keep the copy with AVX2 instructions for processors that have none.
namespace kvlab::kernels::cpu::avx2 {
namespace {

/// f(std::integral_constant<int, 0>) … f(std::integral_constant<int, N − 1>).
template <int N, class F>
inline __attribute__((always_inline)) void unrolled(F f) {
  [&]<int... i>(std::integer_sequence<int, i...>) __attribute__((always_inline)) {
    (f(std::integral_constant<int, i>()), ...);
  }(std::make_integer_sequence<int, N>());
}

/// Eight numbers of an array of `type`, from element i, as float32.
inline __m256 load8(const void* array, std::int64_t i, Type type) {
  if (type == Type::f32) return _mm256_loadu_ps(static_cast<const float*>(array) + i);
  const __m128i bits = _mm_loadu_si128(
      reinterpret_cast<const __m128i*>(static_cast<const std::uint16_t*>(array) + i));
  if (type == Type::f16) return _mm256_cvtph_ps(bits);
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}

/// Columns for rows, 8 × 8.
inline void transpose8(__m256 (&x)[8]) {
  __m256 y[8];
  for (int i = 0; i < 8; i += 2) {
    y[i] = _mm256_unpacklo_ps(x[i], x[i + 1]);
    y[i + 1] = _mm256_unpackhi_ps(x[i], x[i + 1]);
  }
  __m256 z[8];
  for (int i = 0; i < 8; i += 4) {
    z[i] = _mm256_shuffle_ps(y[i], y[i + 2], 0x44);
    z[i + 1] = _mm256_shuffle_ps(y[i], y[i + 2], 0xee);
    z[i + 2] = _mm256_shuffle_ps(y[i + 1], y[i + 3], 0x44);
    z[i + 3] = _mm256_shuffle_ps(y[i + 1], y[i + 3], 0xee);
  }
  for (int i = 0; i < 4; ++i) {
    x[i] = _mm256_permute2f128_ps(z[i], z[i + 4], 0x20);
    x[i + 4] = _mm256_permute2f128_ps(z[i], z[i + 4], 0x31);
  }
}

inline float sum8(__m256 x) {
  __m128 half = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  half = _mm_add_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_add_ss(half, _mm_movehdup_ps(half)));
}

}  // namespace
}  // namespace kvlab::kernels::cpu::avx2

#endif
