#include <cmath>

#include "cpu/packed_avx2.h"

namespace kvlab::kernels::cpu {

#ifndef KVLAB_AVX2

const AttendOps* avx2_attend() { return nullptr; }

#else

namespace avx2 {
namespace {

void window_logits(const std::uint16_t* const* keys, int count, int dim, Type type,
                   const float* query, int rows, float* logits, int stride) {
  float key[kMostDim];
  for (int t = 0; t < count; ++t) {
    for (int c = 0; c < dim; c += 8) _mm256_storeu_ps(key + c, load8(keys[t], c, type));
    for (int row = 0; row < rows; ++row) {
      __m256 sums[4] = {};
      for (int c = 0; c < dim; c += 32) {
        for (int i = 0; i < 4; ++i) {
          sums[i] = _mm256_fmadd_ps(_mm256_loadu_ps(key + c + 8 * i),
                                    _mm256_loadu_ps(query + row * dim + c + 8 * i), sums[i]);
        }
      }
      logits[row * stride + t] =
          sum8(_mm256_add_ps(_mm256_add_ps(sums[0], sums[1]), _mm256_add_ps(sums[2], sums[3])));
    }
  }
}

void window_sums(const std::uint16_t* const* values, int count, int dim, Type type,
                 const float* weights, int stride, int rows, float* sums) {
  float value[kMostDim];
  for (int t = 0; t < count; ++t) {
    for (int c = 0; c < dim; c += 8) _mm256_storeu_ps(value + c, load8(values[t], c, type));
    for (int row = 0; row < rows; ++row) {
      const __m256 weight = _mm256_broadcast_ss(weights + row * stride + t);
      float* sum = sums + row * dim;
      for (int c = 0; c < dim; c += 8) {
        _mm256_storeu_ps(
            sum + c, _mm256_fmadd_ps(weight, _mm256_loadu_ps(value + c), _mm256_loadu_ps(sum + c)));
      }
    }
  }
}

/// e^x for x ≤ 0 to about a unit in the last place: x = n·ln 2 + r, a polynomial of degree 6 for
/// e^r. 0 below −87.3.
inline __m256 exponential(__m256 x) {
  const __m256 least = _mm256_set1_ps(-87.3f);
  const __m256 small = _mm256_cmp_ps(x, least, _CMP_LT_OQ);
  x = _mm256_max_ps(least, x);  // NaN stays: of two, the second is taken
  const __m256 n = _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(1.44269504f)),
                                   _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(0.693359375f), x);
  r = _mm256_fnmadd_ps(n, _mm256_set1_ps(-2.12194440e-4f), r);
  __m256 p = _mm256_set1_ps(1.9875691500e-4f);
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.3981999507e-3f));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(8.3334519073e-3f));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(4.1665795894e-2f));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.6666665459e-1f));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(5.0000001201e-1f));
  p = _mm256_fmadd_ps(_mm256_mul_ps(p, r), r, _mm256_add_ps(r, _mm256_set1_ps(1.0f)));
  const __m256i power =
      _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
  return _mm256_andnot_ps(small, _mm256_mul_ps(p, _mm256_castsi256_ps(power)));
}

/// n numbers, others in place of those behind them.
inline __m256 load_some(const float* from, int n, float other) {
  alignas(32) float eight[8];
  for (int i = 0; i < 8; ++i) eight[i] = i < n ? from[i] : other;
  return _mm256_load_ps(eight);
}

float largest(const float* logits, int n, float most) {
  // Of two numbers one of which is NaN the second is taken.
  __m256 best = _mm256_set1_ps(most);
  int i = 0;
  for (; i + 8 <= n; i += 8) best = _mm256_max_ps(_mm256_loadu_ps(logits + i), best);
  if (i < n) best = _mm256_max_ps(load_some(logits + i, n - i, most), best);
  __m128 half = _mm_max_ps(_mm256_castps256_ps128(best), _mm256_extractf128_ps(best, 1));
  half = _mm_max_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_max_ss(half, _mm_movehdup_ps(half)));
}

float weights(float* logits, int n, float most) {
  __m256 sum = _mm256_setzero_ps();
  const __m256 top = _mm256_set1_ps(most);
  int i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m256 weight = exponential(_mm256_sub_ps(_mm256_loadu_ps(logits + i), top));
    _mm256_storeu_ps(logits + i, weight);
    sum = _mm256_add_ps(sum, weight);
  }
  if (i < n) {
    const __m256 x = load_some(logits + i, n - i, -INFINITY);
    alignas(32) float eight[8];
    const __m256 weight = exponential(_mm256_sub_ps(x, top));
    _mm256_store_ps(eight, weight);
    for (int j = 0; i + j < n; ++j) logits[i + j] = eight[j];
    sum = _mm256_add_ps(sum, weight);
  }
  return sum8(sum);
}

}  // namespace
}  // namespace avx2

const AttendOps* avx2_attend() {
  static constexpr AttendOps ops = {&avx2::packed_logits, &avx2::packed_sums, &avx2::window_logits,
                                    &avx2::window_sums,   &avx2::largest,     &avx2::weights};
  return &ops;
}

#endif

}  // namespace kvlab::kernels::cpu
