#include "cpu/attend_ops.h"
#include "cpu/avx2.h"
#include "kvlab/kernels/layout.h"

namespace kvlab::kernels::cpu {

#ifndef KVLAB_AVX2

const AttendOps* avx2_attend() { return nullptr; }

#else

namespace avx2 {
namespace {

constexpr int kSpan = 64;   // tokens handled at a time
constexpr int kTiles = 4;   // of a span
constexpr int kGroups = 8;  // most groups of a row
constexpr int kMostDim = 256;

/// The order of codes in words, for keys and values alike: 32 channels of 16 tokens are 8 registers
/// r = 0 … 7 of two halves h; a word holds 16 / Bits of the registers. Keys: r = 4·(e/4) + 2·(e/2 %
/// 2) + (upper tokens), values: r = 4·(upper 16 channels) + 2·(upper tokens) + (upper 8 of 16
/// channels).
template <int Bits>
struct Words {
  static constexpr int per_byte = 8 / Bits;
  static constexpr int registers = 2 * per_byte;  // of a word
  static constexpr int count = 8 / registers;     // words of 32 channels

  static constexpr int word(int r) { return r / registers; }
  static constexpr int shift(int r, int h) {
    return 16 * h + 8 * (r % registers / per_byte) + Bits * (r % per_byte);
  }
};

/// Values of eight codes at bit `shift` of eight words: their numbers, or for 2 bits what `table`
/// holds for them.
template <int Bits, int shift>
inline __m256 code_values(__m256i words, __m256 table) {
  const __m256i low = shift == 0 ? words : _mm256_srli_epi32(words, shift);
  if constexpr (Bits == 2) {
    // Only the lowest three bits of an index count, and the table repeats after four.
    return _mm256_permutevar8x32_ps(table, low);
  }
  return _mm256_cvtepi32_ps(_mm256_and_si256(low, _mm256_set1_epi32((1 << Bits) - 1)));
}

/// Words of a span so that a vector holds one word of eight rows g (keys: tokens, values:
/// channels): out[(tile · lane_words + word) · 4 + t] for lanes 4g + t.
template <int Dim, int Bits>
void sort_words(const std::uint8_t* codes, __m256i* out) {
  constexpr int words = lane_words(Dim, Bits);
  constexpr int load = load_words(Dim, Bits);
  for (int part = 0; part < kTiles * words / load; ++part) {
    const auto* from = reinterpret_cast<const float*>(codes) + part * 32 * load;
    const int first = part * load;  // tile · lane_words + word
    for (int eight = 0; eight < load / 2; ++eight) {
      __m256 x[8];
      for (int g = 0; g < 8; ++g) x[g] = _mm256_loadu_ps(from + g * 4 * load + 8 * eight);
      transpose8(x);
      for (int i = 0; i < 8; ++i) {
        const int at = 8 * eight + i;  // t · load + word
        out[(first + at % load) * 4 + at / load] = _mm256_castps_si256(x[i]);
      }
    }
  }
}

/// Numbers of a section as float32; `slotted` ones of 64 tokens come in the order of token_slot.
void load_params(const std::uint8_t* section, int from, int count, Type type, bool slotted,
                 float* out) {
  if (!slotted) {
    for (int i = 0; i < count; i += 8) _mm256_storeu_ps(out + i, load8(section, from + i, type));
    return;
  }
  __m256 x[8];
  for (int g = 0; g < 8; ++g) x[g] = load8(section, from + 8 * g, type);
  transpose8(x);
  for (int i = 0; i < 8; ++i) _mm256_storeu_ps(out + 8 * i, x[i]);
}

/// A side's grid as value = level·scale + zero with levels 0, 1, 2 … or a table.
struct Params {
  float scale[kGroups][kMostDim];  // [group, token of the span], or [1, channel]
  float zero[kGroups][kMostDim];
  __m256 table;
};

/// n parameters of every kind, from element `from` of the sections, into row `row`.
void take_params(const PackedSide& packed, int from, int n, bool slotted, int row, Params& params) {
  const SideFormat& side = *packed.side;
  float* scale = params.scale[row];
  float* zero = params.zero[row];
  load_params(packed.scale, from, n, side.params, slotted, scale);
  if (packed.zero != nullptr) load_params(packed.zero, from, n, side.params, slotted, zero);
  if (side.zero == Zero::value) return;
  const __m256 middle = _mm256_set1_ps(-static_cast<float>((1 << (side.bits - 1)) - 1));
  for (int i = 0; i < n; i += 8) {
    __m256 z = _mm256_setzero_ps();
    const __m256 s = _mm256_loadu_ps(scale + i);
    if (side.zero == Zero::none) z = _mm256_mul_ps(middle, s);
    if (side.zero == Zero::offset) {
      z = _mm256_sub_ps(z, _mm256_mul_ps(_mm256_loadu_ps(zero + i), s));
    }
    _mm256_storeu_ps(zero + i, z);
  }
}

/// The groups of the channels of a span's tokens.
void take_token_params(const PackedSide& packed, int span, Params& params) {
  const Format& format = *packed.format;
  const SideFormat& side = *packed.side;
  const bool slotted = side.group == format.dim;
  for (int group = 0; group < format.dim / side.group; ++group) {
    take_params(packed, group * block_tokens(format) + span * kSpan, kSpan, slotted, group, params);
  }
}

void take_table(const PackedSide& packed, Params& params) {
  const float* levels = packed.levels;
  params.table = packed.side->zero == Zero::codebook
                     ? _mm256_broadcast_ps(reinterpret_cast<const __m128*>(levels))
                     : _mm256_setr_ps(0, 1, 2, 3, 0, 1, 2, 3);
}

/// Rows taken together: their sums stay in registers.
template <class Function>
void by_rows(int rows, Function function) {
  int row = 0;
  for (; row + 4 <= rows; row += 4) function(row, std::integral_constant<int, 4>());
  if (row + 2 <= rows) {
    function(row, std::integral_constant<int, 2>());
    row += 2;
  }
  if (row < rows) function(row, std::integral_constant<int, 1>());
}

/// sums[upper tokens][row] += Σ query · code over channels 32·first … 32·end − 1 of a tile's eight
/// (twice) tokens.
template <int Dim, int Bits, int Rows>
inline void multiply_keys(const __m256i* words, const float* query, __m256 table, int first,
                          int end, __m256 (&sums)[2][Rows]) {
  using W = Words<Bits>;
  for (int c32 = first; c32 < end; ++c32) {
    for (int t = 0; t < 4; ++t) {
      const float* q = query + c32 * 32 + t * 8;
      unrolled<W::count>([&](auto word) __attribute__((always_inline)) {
        const __m256i bits = words[(c32 * W::count + word) * 4 + t];
        unrolled<W::registers>([&](auto i) __attribute__((always_inline)) {
          // Registers 2i (lower tokens) and 2i + 1 (upper), halves h.
          constexpr int pair = i / 2;
          constexpr int h = i % 2;
          constexpr int r = word * W::registers + 2 * pair;
          constexpr int channel = 4 * (r / 4) + 2 * (r / 2 % 2) + h;
          const __m256 lower = code_values<Bits, W::shift(r, h)>(bits, table);
          const __m256 upper = code_values<Bits, W::shift(r + 1, h)>(bits, table);
          for (int row = 0; row < Rows; ++row) {
            const __m256 one = _mm256_broadcast_ss(q + row * Dim + channel);
            sums[0][row] = _mm256_fmadd_ps(lower, one, sums[0][row]);
            sums[1][row] = _mm256_fmadd_ps(upper, one, sums[1][row]);
          }
        });
      });
    }
  }
}

/// Per-token groups: logit = Σ_groups scale·(Σ q·code) + zero·(Σ q).
template <int Dim, int Bits>
void token_logits(const __m256i* words, const Params& params, int group, const float* query,
                  int rows, float* logits, int stride) {
  constexpr int words_of_tile = lane_words(Dim, Bits) * 4;
  const int groups = Dim / group;
  by_rows(rows, [&](int first, auto taken) {
    constexpr int Rows = taken;
    const float* q = query + first * Dim;
    float query_sums[kGroups][Rows];
    for (int g = 0; g < groups; ++g) {
      for (int row = 0; row < Rows; ++row) {
        __m256 sum = _mm256_setzero_ps();
        for (int c = g * group; c < (g + 1) * group; c += 8) {
          sum = _mm256_add_ps(sum, _mm256_loadu_ps(q + row * Dim + c));
        }
        query_sums[g][row] = sum8(sum);
      }
    }
    for (int tile = 0; tile < kTiles; ++tile) {
      __m256 total[2][Rows] = {};
      for (int g = 0; g < groups; ++g) {
        __m256 sums[2][Rows] = {};
        multiply_keys<Dim, Bits, Rows>(words + tile * words_of_tile, q, params.table,
                                       g * group / 32, (g + 1) * group / 32, sums);
        for (int upper = 0; upper < 2; ++upper) {
          const int token = tile * kTile + upper * 8;
          const __m256 scale = _mm256_loadu_ps(params.scale[g] + token);
          const __m256 zero = _mm256_loadu_ps(params.zero[g] + token);
          for (int row = 0; row < Rows; ++row) {
            const __m256 with_zero =
                _mm256_fmadd_ps(zero, _mm256_set1_ps(query_sums[g][row]), total[upper][row]);
            total[upper][row] = _mm256_fmadd_ps(sums[upper][row], scale, with_zero);
          }
        }
      }
      for (int upper = 0; upper < 2; ++upper) {
        for (int row = 0; row < Rows; ++row) {
          _mm256_storeu_ps(logits + (first + row) * stride + tile * kTile + upper * 8,
                           total[upper][row]);
        }
      }
    }
  });
}

/// Per-channel groups: logit = Σ (q·scale)·code + Σ q·zero, the latter the same for all tokens of
/// the group.
template <int Dim, int Bits>
void channel_logits(const __m256i* words, const PackedSide& keys, int span, Params& params,
                    const float* query, int rows, float* logits, int stride) {
  constexpr int words_of_tile = lane_words(Dim, Bits) * 4;
  const int group = keys.side->group;
  const int pace = group < kSpan ? group : kSpan;
  for (int start = 0; start < kSpan; start += pace) {
    take_params(keys, (span * kSpan + start) / group * Dim, Dim, false, 0, params);
    by_rows(rows, [&](int first, auto taken) {
      constexpr int Rows = taken;
      float scaled[Rows * Dim];
      float zeros[Rows];
      for (int row = 0; row < Rows; ++row) {
        __m256 sum = _mm256_setzero_ps();
        for (int c = 0; c < Dim; c += 8) {
          const __m256 q = _mm256_loadu_ps(query + (first + row) * Dim + c);
          _mm256_storeu_ps(scaled + row * Dim + c,
                           _mm256_mul_ps(q, _mm256_loadu_ps(params.scale[0] + c)));
          sum = _mm256_fmadd_ps(q, _mm256_loadu_ps(params.zero[0] + c), sum);
        }
        zeros[row] = sum8(sum);
      }
      for (int tile = start / kTile; tile < (start + pace) / kTile; ++tile) {
        __m256 sums[2][Rows];
        for (int row = 0; row < Rows; ++row) {
          sums[0][row] = sums[1][row] = _mm256_set1_ps(zeros[row]);
        }
        multiply_keys<Dim, Bits, Rows>(words + tile * words_of_tile, scaled, params.table, 0,
                                       Dim / 32, sums);
        for (int upper = 0; upper < 2; ++upper) {
          for (int row = 0; row < Rows; ++row) {
            _mm256_storeu_ps(logits + (first + row) * stride + tile * kTile + upper * 8,
                             sums[upper][row]);
          }
        }
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

template <int Dim, int Bits>
void packed_logits(const PackedSide& keys, int count, const float* query, int rows, float* logits,
                   int stride) {
  __m256i words[kTiles * lane_words(Dim, Bits) * 4];
  Params params;
  take_table(keys, params);
  for (int span = 0; span * kSpan < count; ++span) {
    sort_words<Dim, Bits>(keys.codes + span * kTiles * tile_bytes(Dim, Bits), words);
    float* at = logits + span * kSpan;
    if (keys.side->axis == Axis::token) {
      take_token_params(keys, span, params);
      token_logits<Dim, Bits>(words, params, keys.side->group, query, rows, at, stride);
    } else {
      channel_logits<Dim, Bits>(words, keys, span, params, query, rows, at, stride);
    }
    if (keys.norm != nullptr) multiply_norms(keys, span, rows, at, stride);
  }
}

/// sums[row] += Σ_t weight·(level·scale + zero) over a span's tokens; weights of tokens behind the
/// last are 0.
template <int Dim, int Bits, int Rows>
void add_values(const __m256i* words, const Params& params, int group,
                const float (*weights)[kSpan], float* sums) {
  using W = Words<Bits>;
  constexpr int words_of_tile = lane_words(Dim, Bits) * 4;
  for (int g = 0; g < Dim / group; ++g) {
    float scaled[Rows][kSpan];
    __m256 zeros[Rows];
    for (int row = 0; row < Rows; ++row) {
      __m256 sum = _mm256_setzero_ps();
      for (int t = 0; t < kSpan; t += 8) {
        const __m256 weight = _mm256_loadu_ps(weights[row] + t);
        _mm256_storeu_ps(scaled[row] + t,
                         _mm256_mul_ps(weight, _mm256_loadu_ps(params.scale[g] + t)));
        sum = _mm256_fmadd_ps(weight, _mm256_loadu_ps(params.zero[g] + t), sum);
      }
      zeros[row] = _mm256_set1_ps(sum8(sum));
    }
    for (int c32 = g * group / 32; c32 < (g + 1) * group / 32; ++c32) {
      unrolled<2>([&](auto half) __attribute__((always_inline)) {  // 16 channels
        __m256 lower[Rows], upper[Rows];                           // their eights
        for (int row = 0; row < Rows; ++row) lower[row] = upper[row] = zeros[row];
        for (int tile = 0; tile < kTiles; ++tile) {
          for (int t = 0; t < 4; ++t) {
            const float* weight = &scaled[0][tile * kTile + 2 * t];
            unrolled<4>([&](auto i) __attribute__((always_inline)) {
              constexpr int late = i / 2;  // the upper tokens
              constexpr int h = i % 2;
              constexpr int r = 4 * half + 2 * late;
              const __m256i bits =
                  words[tile * words_of_tile + (c32 * W::count + W::word(r)) * 4 + t];
              const __m256 low = code_values<Bits, W::shift(r, h)>(bits, params.table);
              const __m256 high = code_values<Bits, W::shift(r + 1, h)>(bits, params.table);
              for (int row = 0; row < Rows; ++row) {
                const __m256 one = _mm256_broadcast_ss(weight + row * kSpan + 8 * late + h);
                lower[row] = _mm256_fmadd_ps(low, one, lower[row]);
                upper[row] = _mm256_fmadd_ps(high, one, upper[row]);
              }
            });
          }
        }
        for (int row = 0; row < Rows; ++row) {
          float* at = sums + row * Dim + c32 * 32 + half * 16;
          _mm256_storeu_ps(at, _mm256_add_ps(_mm256_loadu_ps(at), lower[row]));
          _mm256_storeu_ps(at + 8, _mm256_add_ps(_mm256_loadu_ps(at + 8), upper[row]));
        }
      });
    }
  }
}

template <int Dim, int Bits>
void packed_sums(const PackedSide& values, int count, const float* weights, int stride, int rows,
                 float* sums) {
  __m256i words[kTiles * lane_words(Dim, Bits) * 4];
  Params params;
  take_table(values, params);
  for (int span = 0; span * kSpan < count; ++span) {
    sort_words<Dim, Bits>(values.codes + span * kTiles * tile_bytes(Dim, Bits), words);
    take_token_params(values, span, params);
    const int held = count - span * kSpan;
    by_rows(rows, [&](int first, auto taken) {
      constexpr int Rows = taken;
      float used[Rows][kSpan];
      for (int row = 0; row < Rows; ++row) {
        const float* from = weights + (first + row) * stride + span * kSpan;
        for (int t = 0; t < kSpan; ++t) used[row][t] = t < held ? from[t] : 0.0f;
      }
      add_values<Dim, Bits, Rows>(words, params, values.side->group, used, sums + first * Dim);
    });
  }
}

template <class Function>
void by_format(int dim, int bits, Function function) {
  const auto with_bits = [&](auto d) {
    if (bits == 2) function(d, std::integral_constant<int, 2>());
    if (bits == 4) function(d, std::integral_constant<int, 4>());
    if (bits == 8) function(d, std::integral_constant<int, 8>());
  };
  if (dim == 64) with_bits(std::integral_constant<int, 64>());
  if (dim == 128) with_bits(std::integral_constant<int, 128>());
  if (dim == 256) with_bits(std::integral_constant<int, 256>());
}

void any_packed_logits(const PackedSide& keys, int count, const float* query, int rows,
                       float* logits, int stride) {
  by_format(keys.format->dim, keys.side->bits, [&](auto dim, auto bits) {
    packed_logits<dim, bits>(keys, count, query, rows, logits, stride);
  });
}

void any_packed_sums(const PackedSide& values, int count, const float* weights, int stride,
                     int rows, float* sums) {
  by_format(values.format->dim, values.side->bits, [&](auto dim, auto bits) {
    packed_sums<dim, bits>(values, count, weights, stride, rows, sums);
  });
}

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

/// Numbers of lanes behind the n-th are left alone.
inline __m256i first_lanes(int n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
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

float largest(const float* logits, int n, float most) {
  __m256 best = _mm256_set1_ps(most);
  for (int i = 0; i < n; i += 8) {
    const __m256i lanes = first_lanes(n - i);
    const __m256 x = _mm256_maskload_ps(logits + i, lanes);
    best = _mm256_max_ps(_mm256_blendv_ps(best, x, _mm256_castsi256_ps(lanes)), best);
  }
  alignas(32) float eight[8];
  _mm256_store_ps(eight, best);
  for (int i = 0; i < 8; ++i) most = eight[i] > most ? eight[i] : most;
  return most;
}

float weights(float* logits, int n, float most) {
  __m256 sum = _mm256_setzero_ps();
  const __m256 top = _mm256_set1_ps(most);
  for (int i = 0; i < n; i += 8) {
    const __m256i lanes = first_lanes(n - i);
    const __m256 x = _mm256_sub_ps(_mm256_maskload_ps(logits + i, lanes), top);
    const __m256 weight = _mm256_and_ps(exponential(x), _mm256_castsi256_ps(lanes));
    _mm256_maskstore_ps(logits + i, lanes, weight);
    sum = _mm256_add_ps(sum, weight);
  }
  return sum8(sum);
}

}  // namespace
}  // namespace avx2

const AttendOps* avx2_attend() {
  static constexpr AttendOps ops = {&avx2::any_packed_logits, &avx2::any_packed_sums,
                                    &avx2::window_logits,     &avx2::window_sums,
                                    &avx2::largest,           &avx2::weights};
  return &ops;
}

#endif

}  // namespace kvlab::kernels::cpu
