#include "cpu/packed_avx2.h"

#ifdef KVLAB_AVX2

namespace kvlab::kernels::cpu::avx2 {
namespace {

/// Factors of the weights of eight tokens, the lower or the upper half of a tile.
template <int Bits, bool Lookup>
inline __m256 weight_factors(bool upper) {
  using C = Codes<Bits, Lookup>;
  const __m256 even = _mm256_set1_ps(upper ? C::factor(2, 0) : C::factor(0, 0));
  const __m256 odd = _mm256_set1_ps(upper ? C::factor(2, 1) : C::factor(0, 1));
  return _mm256_blend_ps(even, odd, 0xaa);
}

/// Σ_t weight · code of 16 channels (half `half` of 32) over a span's tokens. words: of the first
/// tile's 32 channels; weights: [Rows, kSpan] with scales and factors. Apart for its registers.
template <int Dim, int Bits, bool Lookup, int half, int Rows>
KVLAB_APART Sums<Rows> multiply_values(const __m256i* words, const float* weights, __m256 table) {
  using W = Words<Bits>;
  using C = Codes<Bits, Lookup>;
  __m256 lower_sums[Rows] = {}, upper_sums[Rows] = {};
  for (int tile = 0; tile < kTiles; ++tile, words += lane_words(Dim, Bits) * 4) {
    for (int t = 0; t < 4; ++t) {
      const float* weight = weights + tile * kTile + 2 * t;
      unrolled<2>([&](auto late) KVLAB_INLINE {  // the upper tokens
        constexpr int r = 4 * half + 2 * late;
        const __m256i lower_bits = words[W::word(r) * 4 + t];
        const __m256i upper_bits = _mm256_srli_epi32(lower_bits, Bits);
        unrolled<2>([&](auto h) KVLAB_INLINE {
          const __m256 lower = C::template values<W::shift(r, h)>(lower_bits, table);
          const __m256 upper = C::template values<W::shift(r, h)>(upper_bits, table);
          unrolled<Rows>([&](auto row) KVLAB_INLINE {
            const __m256 one = _mm256_broadcast_ss(weight + row * kSpan + 8 * late + h);
            lower_sums[row] = _mm256_fmadd_ps(lower, one, lower_sums[row]);
            upper_sums[row] = _mm256_fmadd_ps(upper, one, upper_sums[row]);
          });
        });
      });
    }
  }
  return sums_of(lower_sums, upper_sums);
}

/// Scales with the factors of their tokens.
template <int Bits, bool Lookup>
void put_factors(int groups, Params& params) {
  const __m256 factors[2] = {weight_factors<Bits, Lookup>(false),
                             weight_factors<Bits, Lookup>(true)};
  for (int g = 0; g < groups; ++g) {
    for (int t = 0; t < kSpan; t += 8) {
      float* scale = params.scale[g] + t;
      _mm256_storeu_ps(scale, _mm256_mul_ps(_mm256_loadu_ps(scale), factors[t / 8 % 2]));
    }
  }
}

/// sums[row] += Σ_t weight·(level·scale + zero) over a span's tokens; weights [Rows, stride],
/// scales with factors.
template <int Dim, int Bits, bool Lookup, int Rows>
void add_values(const __m256i* words, const Params& params, int group, const float* weights,
                int stride, float* sums) {
  using W = Words<Bits>;
  using C = Codes<Bits, Lookup>;
  for (int g = 0; g < Dim / group; ++g) {
    float scaled[Rows * kSpan];
    __m256 zeros[Rows];
    for (int row = 0; row < Rows; ++row) {
      __m256 sum = _mm256_setzero_ps();
      for (int t = 0; t < kSpan; t += 8) {
        const __m256 weight = _mm256_loadu_ps(weights + row * stride + t);
        _mm256_storeu_ps(scaled + row * kSpan + t,
                         _mm256_mul_ps(weight, _mm256_loadu_ps(params.scale[g] + t)));
        sum = _mm256_fmadd_ps(weight, _mm256_loadu_ps(params.zero[g] + t), sum);
      }
      zeros[row] = _mm256_set1_ps(sum8(sum));
    }
    for (int c32 = g * group / 32; c32 < (g + 1) * group / 32; ++c32) {
      unrolled<2>([&](auto half) KVLAB_INLINE {  // 16 channels
        const Sums<Rows> values = multiply_values<Dim, Bits, Lookup, half, Rows>(
            words + c32 * W::count * 4, scaled, params.table);
        // The factors are those of the first 16 channels.
        constexpr int further = Lookup ? 0 : W::shift(4 * half, 0);
        const __m256 undo = _mm256_set1_ps(1.0f / power_of_two(C::kMost) / power_of_two(further));
        for (int row = 0; row < Rows; ++row) {
          float* at = sums + row * Dim + c32 * 32 + half * 16;
          const __m256 lower = _mm256_add_ps(_mm256_loadu_ps(at), zeros[row]);
          const __m256 upper = _mm256_add_ps(_mm256_loadu_ps(at + 8), zeros[row]);
          _mm256_storeu_ps(at, _mm256_fmadd_ps(values.lower[row], undo, lower));
          _mm256_storeu_ps(at + 8, _mm256_fmadd_ps(values.upper[row], undo, upper));
        }
      });
    }
  }
}

template <int Dim, int Bits, bool Lookup>
void sums_of(const PackedSide& values, int count, const float* weights, int stride, int rows,
             float* sums) {
  __m256i words[kTiles * lane_words(Dim, Bits) * 4];
  Params params;
  take_table(values, params);
  for (int span = 0; span * kSpan < count; ++span) {
    sort_words<Dim, Bits>(values.codes + span * kTiles * tile_bytes(Dim, Bits), words);
    take_token_params(values, span, params);
    put_factors<Bits, Lookup>(Dim / values.side->group, params);
    const int held = count - span * kSpan;
    by_rows(rows, [&](int first, auto taken) {
      constexpr int Rows = taken;
      const float* used = weights + first * stride + span * kSpan;
      int used_stride = stride;
      float some[Rows * kSpan];
      if (held < kSpan) {  // what is behind the last token counts nothing
        for (int i = 0; i < Rows * kSpan; ++i) {
          some[i] = i % kSpan < held ? used[i / kSpan * stride + i % kSpan] : 0.0f;
        }
        used = some;
        used_stride = kSpan;
      }
      add_values<Dim, Bits, Lookup, Rows>(words, params, values.side->group, used, used_stride,
                                          sums + first * Dim);
    });
  }
}

}  // namespace

void packed_sums(const PackedSide& values, int count, const float* weights, int stride, int rows,
                 float* sums) {
  by_format(values.format->dim, *values.side, [&](auto dim, auto bits, auto lookup) {
    sums_of<dim, bits, lookup>(values, count, weights, stride, rows, sums);
  });
}

}  // namespace kvlab::kernels::cpu::avx2

#endif
