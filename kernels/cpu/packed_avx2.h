#pragma once

#include "cpu/attend_ops.h"
#include "cpu/avx2.h"

#ifdef KVLAB_AVX2

#include "kvlab/kernels/layout.h"

/// What attention over packed keys and over packed values share: words of codes in vectors, codes
/// as floats, parameters.
namespace kvlab::kernels::cpu::avx2 {
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
inline void load_params(const std::uint8_t* section, int from, int count, Type type, bool slotted,
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
inline void take_params(const PackedSide& packed, int from, int n, bool slotted, int row,
                        Params& params) {
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
inline void take_token_params(const PackedSide& packed, int span, Params& params) {
  const Format& format = *packed.format;
  const SideFormat& side = *packed.side;
  const bool slotted = side.group == format.dim;
  for (int group = 0; group < format.dim / side.group; ++group) {
    take_params(packed, group * block_tokens(format) + span * kSpan, kSpan, slotted, group, params);
  }
}

inline void take_table(const PackedSide& packed, Params& params) {
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

/// Of sums that were not made in the result's memory, where every change would be stored.
template <int Rows>
inline Sums<Rows> sums_of(const __m256 (&lower)[Rows], const __m256 (&upper)[Rows]) {
  Sums<Rows> sums;
  unrolled<Rows>([&](auto row) KVLAB_INLINE {
    sums.lower[row] = lower[row];
    sums.upper[row] = upper[row];
  });
  return sums;
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

}  // namespace

/// AttendOps' packed_logits and packed_sums.
void packed_logits(const PackedSide& keys, int count, const float* query, int rows, float* logits,
                   int stride);
void packed_sums(const PackedSide& values, int count, const float* weights, int stride, int rows,
                 float* sums);

}  // namespace kvlab::kernels::cpu::avx2

#endif
