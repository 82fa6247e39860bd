#include <cmath>

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
/// 2)
/// + (upper tokens), values: r = 4·(upper 16 channels) + 2·(upper tokens) + (upper 8 of 16
/// channels). An odd register is its even neighbour, Bits higher.
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

constexpr float power_of_two(int n) { return n == 0 ? 1.0f : 2.0f * power_of_two(n - 1); }

/// How codes become floats. Numbers are left where they stand in the word, code·2^shift, which
/// saves a shift; what they are multiplied by has a factor 2^(kMost − shift) for it. Levels of a
/// codebook are looked up.
template <int Bits, bool Lookup>
struct Codes {
  static constexpr int kMost = Lookup ? 0 : Words<Bits>::shift(6, 1);  // of even registers

  template <int shift>
  static __m256 values(__m256i words, __m256 table) {
    if constexpr (Lookup) {
      // Only the lowest three bits of an index count, and the table repeats after four.
      return _mm256_permutevar8x32_ps(table, _mm256_srli_epi32(words, shift));
    } else {
      constexpr int mask = ((1 << Bits) - 1) << shift;
      return _mm256_cvtepi32_ps(_mm256_and_si256(words, _mm256_set1_epi32(mask)));
    }
  }

  /// The factor of what is multiplied by an even register's half.
  static constexpr float factor(int r, int h) {
    return Lookup ? 1.0f : power_of_two(kMost - Words<Bits>::shift(r, h));
  }
};

/// Words of a span so that a vector holds one word of eight rows g (keys: tokens, values:
/// channels): out[(tile · lane_words + word) · 4 + t] for lanes 4g + t.
template <int Dim, int Bits>
void sort_words(const std::uint8_t* codes, __m256i* out) {
  constexpr int words = lane_words(Dim, Bits);
  constexpr int load = load_words(Dim, Bits);
  for (int part = 0; part < kTiles * words / load; ++part) {
    const auto* from = reinterpret_cast<const float*>(codes) + part * 32 * load;
    const int first = part * load;  // tile · lane_words + word
    unrolled<load / 2>([&](auto eight) KVLAB_INLINE {
      __m256 x[8];
      columns8(from + 8 * eight, 4 * load, x);
      unrolled<8>([&](auto i) KVLAB_INLINE {
        constexpr int at = 8 * eight + i;  // t · load + word
        out[(first + at % load) * 4 + at / load] = _mm256_castps_si256(x[i]);
      });
    });
  }
}

/// Numbers of a section as float32; `slotted` ones of 64 tokens come in the order of token_slot.
void load_params(const std::uint8_t* section, int from, int count, Type type, bool slotted,
                 float* out) {
  float* to = out;
  float slots[kSpan];
  if (slotted) to = slots;
  for (int i = 0; i < count; i += 8) _mm256_storeu_ps(to + i, load8(section, from + i, type));
  if (!slotted) return;
  __m256 x[8];
  columns8(slots, 8, x);
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
  params.table = packed.side->zero == Zero::codebook
                     ? _mm256_broadcast_ps(reinterpret_cast<const __m128*>(packed.levels))
                     : _mm256_setzero_ps();
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

/// Sums of a tile: its lower eight and upper eight tokens, or of 16 channels.
template <int Rows>
struct Sums {
  __m256 lower[Rows], upper[Rows];
};

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
  // Not in the result's memory, where every change would be stored.
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
  Sums<Rows> sums;
  unrolled<Rows>([&](auto row) KVLAB_INLINE {
    sums.lower[row] = lower_sums[row];
    sums.upper[row] = upper_sums[row];
  });
  return sums;
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
      token_logits<Dim, Bits, Lookup>(words, params, keys.side->group, query, rows, at, stride);
    } else {
      channel_logits<Dim, Bits, Lookup>(words, keys, span, params, query, rows, at, stride);
    }
    if (keys.norm != nullptr) multiply_norms(keys, span, rows, at, stride);
  }
}

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
  // Not in the result's memory, where every change would be stored.
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
  Sums<Rows> sums;
  unrolled<Rows>([&](auto row) KVLAB_INLINE {
    sums.lower[row] = lower_sums[row];
    sums.upper[row] = upper_sums[row];
  });
  return sums;
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
void packed_sums(const PackedSide& values, int count, const float* weights, int stride, int rows,
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

/// function(dim, bits, whether levels are looked up), all constants.
template <class Function>
void by_format(int dim, const SideFormat& side, Function function) {
  const auto with_bits = [&](auto d) {
    using std::integral_constant;
    if (side.zero == Zero::codebook) {
      function(d, integral_constant<int, 2>(), std::true_type());
    } else if (side.bits == 2) {
      function(d, integral_constant<int, 2>(), std::false_type());
    } else if (side.bits == 4) {
      function(d, integral_constant<int, 4>(), std::false_type());
    } else {
      function(d, integral_constant<int, 8>(), std::false_type());
    }
  };
  if (dim == 64) with_bits(std::integral_constant<int, 64>());
  if (dim == 128) with_bits(std::integral_constant<int, 128>());
  if (dim == 256) with_bits(std::integral_constant<int, 256>());
}

void any_packed_logits(const PackedSide& keys, int count, const float* query, int rows,
                       float* logits, int stride) {
  by_format(keys.format->dim, *keys.side, [&](auto dim, auto bits, auto lookup) {
    packed_logits<dim, bits, lookup>(keys, count, query, rows, logits, stride);
  });
}

void any_packed_sums(const PackedSide& values, int count, const float* weights, int stride,
                     int rows, float* sums) {
  by_format(values.format->dim, *values.side, [&](auto dim, auto bits, auto lookup) {
    packed_sums<dim, bits, lookup>(values, count, weights, stride, rows, sums);
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
  static constexpr AttendOps ops = {&avx2::any_packed_logits, &avx2::any_packed_sums,
                                    &avx2::window_logits,     &avx2::window_sums,
                                    &avx2::largest,           &avx2::weights};
  return &ops;
}

#endif

}  // namespace kvlab::kernels::cpu
