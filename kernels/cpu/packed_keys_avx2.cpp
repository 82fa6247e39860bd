#include "cpu/packed_avx2.h"

#ifdef KVLAB_AVX2

namespace kvlab::kernels::cpu::avx2 {
namespace {

/// Factors of eight channels' queries (Codes).
template <int Bits, bool Lookup>
inline __m256 query_factors() {
  using C = Codes<Bits, Lookup>;
  return _mm256_setr_ps(C::factor(0, 0), C::factor(0, 1), C::factor(2, 0), C::factor(2, 1),
                        C::factor(4, 0), C::factor(4, 1), C::factor(6, 0), C::factor(6, 1));
}

/// Σ query · code over channels 32·first … 32·end − 1 of a tile. query: [Rows, Dim] with factors. A
/// function of its own, so that its sums have all registers.
template <int Dim, int Bits, bool Lookup, int Rows>
KVLAB_APART Sums<Rows> multiply_keys(const __m256i* words, const float* query, __m256 table,
                                     int first, int end) {
  using W = Words<Bits>;
  using C = Codes<Bits, Lookup>;
  __m256 lower_sums[Rows] = {}, upper_sums[Rows] = {};
  for (int c32 = first; c32 < end; ++c32) {
    for (int t = 0; t < 4; ++t) {
      const float* q = query + c32 * 32 + t * 8;
      unrolled<W::count>([&](auto word) KVLAB_INLINE {
        const __m256i lower_bits = words[(c32 * W::count + word) * 4 + t];
        const __m256i upper_bits = _mm256_srli_epi32(lower_bits, Bits);
        unrolled<W::registers>([&](auto i) KVLAB_INLINE {
          // Registers r (lower tokens) and r + 1 (upper), half h.
          constexpr int h = i % 2;
          constexpr int r = word * W::registers + i / 2 * 2;
          constexpr int channel = 4 * (r / 4) + 2 * (r / 2 % 2) + h;
          const __m256 lower = C::template values<W::shift(r, h)>(lower_bits, table);
          const __m256 upper = C::template values<W::shift(r, h)>(upper_bits, table);
          unrolled<Rows>([&](auto row) KVLAB_INLINE {
            const __m256 one = _mm256_broadcast_ss(q + row * Dim + channel);
            lower_sums[row] = _mm256_fmadd_ps(lower, one, lower_sums[row]);
            upper_sums[row] = _mm256_fmadd_ps(upper, one, upper_sums[row]);
          });
        });
      });
    }
  }
  return sums_of(lower_sums, upper_sums);
}

/// A tile's sums as logits: sum·scale + zero.
template <int Rows>
inline void store_logits(const Sums<Rows>& sums, float* logits, int stride) {
  unrolled<Rows>([&](auto row) KVLAB_INLINE {
    _mm256_storeu_ps(logits + row * stride, sums.lower[row]);
    _mm256_storeu_ps(logits + row * stride + 8, sums.upper[row]);
  });
}

/// Per-token groups: logit = Σ_groups scale·(Σ q·code) + zero·(Σ q).
template <int Dim, int Bits, bool Lookup>
void token_logits(const __m256i* words, Params& params, int group, const float* query, int rows,
                  float* logits, int stride) {
  using C = Codes<Bits, Lookup>;
  constexpr int words_of_tile = lane_words(Dim, Bits) * 4;
  const int groups = Dim / group;
  const __m256 undo = _mm256_set1_ps(1.0f / power_of_two(C::kMost));
  for (int g = 0; g < groups; ++g) {
    for (int t = 0; t < kSpan; t += 8) {
      float* scale = params.scale[g] + t;
      _mm256_storeu_ps(scale, _mm256_mul_ps(_mm256_loadu_ps(scale), undo));
    }
  }
  by_rows(rows, [&](int first, auto taken) {
    constexpr int Rows = taken;
    float factored[Rows * Dim];
    float query_sums[kGroups][Rows];
    for (int row = 0; row < Rows; ++row) {
      for (int g = 0; g < groups; ++g) {
        __m256 sum = _mm256_setzero_ps();
        for (int c = g * group; c < (g + 1) * group; c += 8) {
          const __m256 q = _mm256_loadu_ps(query + (first + row) * Dim + c);
          sum = _mm256_add_ps(sum, q);
          _mm256_storeu_ps(factored + row * Dim + c,
                           _mm256_mul_ps(q, query_factors<Bits, Lookup>()));
        }
        query_sums[g][row] = sum8(sum);
      }
    }
    for (int tile = 0; tile < kTiles; ++tile) {
      Sums<Rows> total = {};
      for (int g = 0; g < groups; ++g) {
        const Sums<Rows> sums = multiply_keys<Dim, Bits, Lookup, Rows>(
            words + tile * words_of_tile, factored, params.table, g * group / 32,
            (g + 1) * group / 32);
        const float* scale = params.scale[g] + tile * kTile;
        const float* zero = params.zero[g] + tile * kTile;
        unrolled<Rows>([&](auto row) KVLAB_INLINE {
          const __m256 all = _mm256_set1_ps(query_sums[g][row]);
          total.lower[row] =
              _mm256_fmadd_ps(sums.lower[row], _mm256_loadu_ps(scale),
                              _mm256_fmadd_ps(all, _mm256_loadu_ps(zero), total.lower[row]));
          total.upper[row] =
              _mm256_fmadd_ps(sums.upper[row], _mm256_loadu_ps(scale + 8),
                              _mm256_fmadd_ps(all, _mm256_loadu_ps(zero + 8), total.upper[row]));
        });
      }
      store_logits(total, logits + first * stride + tile * kTile, stride);
    }
  });
}

/// Per-channel groups: logit = Σ (q·scale)·code + Σ q·zero, the latter the same for all tokens of
/// the group.
template <int Dim, int Bits, bool Lookup>
void channel_logits(const __m256i* words, const PackedSide& keys, int span, Params& params,
                    const float* query, int rows, float* logits, int stride) {
  using C = Codes<Bits, Lookup>;
  constexpr int words_of_tile = lane_words(Dim, Bits) * 4;
  const __m256 undo = _mm256_set1_ps(1.0f / power_of_two(C::kMost));
  const int group = keys.side->group;
  const int pace = group < kSpan ? group : kSpan;
  for (int start = 0; start < kSpan; start += pace) {
    take_params(keys, (span * kSpan + start) / group * Dim, Dim, false, 0, params);
    by_rows(rows, [&](int first, auto taken) {
      constexpr int Rows = taken;
      float scaled[Rows * Dim];
      __m256 zeros[Rows];
      for (int row = 0; row < Rows; ++row) {
        __m256 sum = _mm256_setzero_ps();
        for (int c = 0; c < Dim; c += 8) {
          const __m256 q = _mm256_loadu_ps(query + (first + row) * Dim + c);
          const __m256 scale = _mm256_loadu_ps(params.scale[0] + c);
          _mm256_storeu_ps(scaled + row * Dim + c,
                           _mm256_mul_ps(_mm256_mul_ps(q, scale), query_factors<Bits, Lookup>()));
          sum = _mm256_fmadd_ps(q, _mm256_loadu_ps(params.zero[0] + c), sum);
        }
        zeros[row] = _mm256_set1_ps(sum8(sum));
      }
      for (int tile = start / kTile; tile < (start + pace) / kTile; ++tile) {
        Sums<Rows> sums = multiply_keys<Dim, Bits, Lookup, Rows>(words + tile * words_of_tile,
                                                                 scaled, params.table, 0, Dim / 32);
        unrolled<Rows>([&](auto row) KVLAB_INLINE {
          sums.lower[row] = _mm256_fmadd_ps(sums.lower[row], undo, zeros[row]);
          sums.upper[row] = _mm256_fmadd_ps(sums.upper[row], undo, zeros[row]);
        });
        store_logits(sums, logits + first * stride + tile * kTile, stride);
      }
    });
  }
}

void multiply_norms(const PackedSide& keys, int span, int rows, float* logits, int stride) {
  float norms[kSpan];
  load_params(keys.norm, span * kSpan, kSpan, keys.format->norm_type, true, norms);
  for (int t = 0; t < kSpan; t += 8) {
    const __m256 norm = _mm256_loadu_ps(norms + t);
    for (int row = 0; row < rows; ++row) {
      float* at = logits + row * stride + t;
      const __m256 logit = _mm256_loadu_ps(at);
      _mm256_storeu_ps(
          at, keys.format->norm_inverse ? _mm256_div_ps(logit, norm) : _mm256_mul_ps(logit, norm));
    }
  }
}

template <int Dim, int Bits, bool Lookup>
void logits_of(const PackedSide& keys, int count, const float* query, int rows, float* logits,
               int stride) {
  __m256i words[kTiles * lane_words(Dim, Bits) * 4];
  Params params;
  take_table(keys, params);
  for (int span = 0; span * kSpan < count; ++span) {
    sort_words<Dim, Bits>(keys.codes + span * kTiles * tile_bytes(Dim, Bits), words);
    float* at = logits + span * kSpan;
    if (keys.side->axis == Axis::token) {
      take_token_params(keys, span, params);
      token_logits<Dim, Bits, Lookup>(words, params, keys.side->group, query, rows, at, stride);
    } else {
      channel_logits<Dim, Bits, Lookup>(words, keys, span, params, query, rows, at, stride);
    }
    if (keys.norm != nullptr) multiply_norms(keys, span, rows, at, stride);
  }
}

}  // namespace

void packed_logits(const PackedSide& keys, int count, const float* query, int rows, float* logits,
                   int stride) {
  by_format(keys.format->dim, *keys.side, [&](auto dim, auto bits, auto lookup) {
    logits_of<dim, bits, lookup>(keys, count, query, rows, logits, stride);
  });
}

}  // namespace kvlab::kernels::cpu::avx2

#endif
