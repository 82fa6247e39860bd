#pragma once

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define KVLAB_AVX2 1

/// Loops unrolled by lambdas must be inlined, or their vectors leave the registers.
#define KVLAB_INLINE __attribute__((always_inline))
#define KVLAB_APART __attribute__((noinline))

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
inline KVLAB_INLINE void unrolled(F f) {
  [&]<int... i>(std::integer_sequence<int, i...>) KVLAB_INLINE {
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

/// Columns of eight rows of eight numbers, `stride` apart.
inline void columns8(const float* rows, int stride, __m256 (&columns)[8]) {
  for (int half = 0; half < 2; ++half) {  // columns 0 … 3 and 4 … 7
    __m256 x[4];                          // rows i and i + 4
    for (int i = 0; i < 4; ++i) {
      const float* at = rows + i * stride + 4 * half;
      x[i] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(at)),
                                  _mm_loadu_ps(at + 4 * stride), 1);
    }
    const __m256 low01 = _mm256_unpacklo_ps(x[0], x[1]);
    const __m256 high01 = _mm256_unpackhi_ps(x[0], x[1]);
    const __m256 low23 = _mm256_unpacklo_ps(x[2], x[3]);
    const __m256 high23 = _mm256_unpackhi_ps(x[2], x[3]);
    columns[4 * half] = _mm256_shuffle_ps(low01, low23, 0x44);
    columns[4 * half + 1] = _mm256_shuffle_ps(low01, low23, 0xee);
    columns[4 * half + 2] = _mm256_shuffle_ps(high01, high23, 0x44);
    columns[4 * half + 3] = _mm256_shuffle_ps(high01, high23, 0xee);
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
