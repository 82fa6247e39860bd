#include <cmath>

#include "cpu/avx2.h"
#include "cpu/row_ops.h"
#include "kvlab/kernels/layout.h"

namespace kvlab::kernels::cpu {

#ifndef KVLAB_AVX2

const RowOps* avx2_rows() { return nullptr; }

#else

namespace avx2 {
namespace {

void load(const void* const* rows, int count, int dim, Type type, const float* center, float* out) {
  for (int row = 0; row < count; ++row, out += dim) {
    for (int c = 0; c < dim; c += 8) {
      __m256 x = load8(rows[row], c, type);
      if (center != nullptr) x = _mm256_sub_ps(x, _mm256_loadu_ps(center + c));
      _mm256_storeu_ps(out + c, x);
    }
  }
}

/// Butterflies within a vector: `swapped` holds each number's partner, `signs` flips the second of
/// a pair.
inline __m256 butterfly(__m256 x, __m256 swapped, __m256 signs) {
  return _mm256_add_ps(swapped, _mm256_xor_ps(x, signs));
}

/// The butterflies of 64 numbers.
inline void hadamard64(float* x) {
  const __m256 one = _mm256_setr_ps(0, -0.f, 0, -0.f, 0, -0.f, 0, -0.f);
  const __m256 two = _mm256_setr_ps(0, 0, -0.f, -0.f, 0, 0, -0.f, -0.f);
  const __m256 four = _mm256_setr_ps(0, 0, 0, 0, -0.f, -0.f, -0.f, -0.f);
  __m256 v[8];
  unrolled<8>([&](auto i) KVLAB_INLINE {
    __m256 y = _mm256_loadu_ps(x + 8 * i);
    y = butterfly(y, _mm256_permute_ps(y, 0xb1), one);
    y = butterfly(y, _mm256_permute_ps(y, 0x4e), two);
    v[i] = butterfly(y, _mm256_permute2f128_ps(y, y, 1), four);
  });
  unrolled<3>([&](auto stage) KVLAB_INLINE {
    unrolled<4>([&](auto pair) KVLAB_INLINE {
      constexpr int half = 1 << stage;
      constexpr int i = pair / half * 2 * half + pair % half;
      const __m256 a = v[i];
      const __m256 b = v[i + half];
      v[i] = _mm256_add_ps(a, b);
      v[i + half] = _mm256_sub_ps(a, b);
    });
  });
  unrolled<8>([&](auto i) KVLAB_INLINE { _mm256_storeu_ps(x + 8 * i, v[i]); });
}

void hadamard(float* rows, int count, int dim) {
  const __m256 norm = _mm256_set1_ps(static_cast<float>(1.0 / std::sqrt(static_cast<double>(dim))));
  for (int row = 0; row < count; ++row, rows += dim) {
    for (int c = 0; c < dim; c += 64) hadamard64(rows + c);
    for (int half = 64; half < dim; half *= 2) {
      for (int base = 0; base < dim; base += 2 * half) {
        for (int c = base; c < base + half; c += 8) {
          const __m256 a = _mm256_loadu_ps(rows + c);
          const __m256 b = _mm256_loadu_ps(rows + c + half);
          _mm256_storeu_ps(rows + c, _mm256_add_ps(a, b));
          _mm256_storeu_ps(rows + c + half, _mm256_sub_ps(a, b));
        }
      }
    }
    for (int c = 0; c < dim; c += 8) {
      _mm256_storeu_ps(rows + c, _mm256_mul_ps(_mm256_loadu_ps(rows + c), norm));
    }
  }
}

/// Rows × matrix for `Rows` rows, sixteen columns at a time, terms in ascending order.
template <int Rows>
void product_block(const float* rows, int dim, const float* matrix, float* out) {
  for (int c = 0; c < dim; c += 16) {
    __m256 sums[Rows][2] = {};
    for (int i = 0; i < dim; ++i) {
      const __m256 left = _mm256_loadu_ps(matrix + i * dim + c);
      const __m256 right = _mm256_loadu_ps(matrix + i * dim + c + 8);
      for (int row = 0; row < Rows; ++row) {
        const __m256 x = _mm256_broadcast_ss(rows + row * dim + i);
        sums[row][0] = _mm256_add_ps(sums[row][0], _mm256_mul_ps(x, left));
        sums[row][1] = _mm256_add_ps(sums[row][1], _mm256_mul_ps(x, right));
      }
    }
    for (int row = 0; row < Rows; ++row) {
      _mm256_storeu_ps(out + row * dim + c, sums[row][0]);
      _mm256_storeu_ps(out + row * dim + c + 8, sums[row][1]);
    }
  }
}

void copy_row(const float* from, int dim, float* to) {
  for (int c = 0; c < dim; c += 8) _mm256_storeu_ps(to + c, _mm256_loadu_ps(from + c));
}

void product(float* rows, int count, int dim, const float* matrix, bool transposed,
             float* scratch) {
  constexpr int kRows = 4;
  if (transposed) {
    for (int row = 0; row < count; ++row, rows += dim) {
      for (int c = 0; c < dim; ++c) {
        __m256 sum = _mm256_setzero_ps();
        for (int i = 0; i < dim; i += 8) {
          sum = _mm256_fmadd_ps(_mm256_loadu_ps(rows + i), _mm256_loadu_ps(matrix + c * dim + i),
                                sum);
        }
        scratch[c] = sum8(sum);
      }
      copy_row(scratch, dim, rows);
    }
    return;
  }
  float out[kRows * 256];
  int row = 0;
  for (; row + kRows <= count; row += kRows) {
    product_block<kRows>(rows + row * dim, dim, matrix, out);
    for (int i = 0; i < kRows; ++i) copy_row(out + i * dim, dim, rows + (row + i) * dim);
  }
  for (; row < count; ++row) {
    product_block<1>(rows + row * dim, dim, matrix, out);
    copy_row(out, dim, rows + row * dim);
  }
}

void square_sums(const float* rows, int count, int dim, double* sums) {
  for (int row = 0; row < count; ++row, rows += dim) {
    __m256d low = _mm256_setzero_pd();
    __m256d high = _mm256_setzero_pd();
    for (int c = 0; c < dim; c += 8) {
      const __m256d a = _mm256_cvtps_pd(_mm_loadu_ps(rows + c));
      const __m256d b = _mm256_cvtps_pd(_mm_loadu_ps(rows + c + 4));
      low = _mm256_fmadd_pd(a, a, low);
      high = _mm256_fmadd_pd(b, b, high);
    }
    const __m256d sum = _mm256_add_pd(low, high);
    const __m128d half = _mm_add_pd(_mm256_castpd256_pd128(sum), _mm256_extractf128_pd(sum, 1));
    sums[row] = _mm_cvtsd_f64(_mm_add_sd(half, _mm_unpackhi_pd(half, half)));
  }
}

void rescale(float* rows, int count, int dim, const float* by, bool divide) {
  for (int row = 0; row < count; ++row, rows += dim) {
    const __m256 number = _mm256_set1_ps(by[row]);
    for (int c = 0; c < dim; c += 8) {
      const __m256 x = _mm256_loadu_ps(rows + c);
      _mm256_storeu_ps(rows + c, divide ? _mm256_div_ps(x, number) : _mm256_mul_ps(x, number));
    }
  }
}

inline int sum8(__m256i x) {
  __m128i half = _mm_add_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
  half = _mm_add_epi32(half, _mm_shuffle_epi32(half, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(half, _mm_shuffle_epi32(half, 0xb1)));
}

/// Bisection by bits, until one number is left between the bounds.
std::uint32_t select(std::uint32_t* numbers, int n, int index) {
  const auto* all = reinterpret_cast<const __m256i*>(numbers);
  const auto below = [&](std::uint32_t bound) {
    const __m256i limit = _mm256_set1_epi32(static_cast<int>(bound));
    __m256i count = _mm256_setzero_si256();
    for (int i = 0; i < n / 8; ++i) {
      count = _mm256_sub_epi32(count, _mm256_cmpgt_epi32(limit, _mm256_loadu_si256(all + i)));
    }
    return sum8(count);
  };
  // least ≤ the number < least + 2^bit; `under` numbers are below least, `within` below the upper
  // bound.
  std::uint32_t least = 0;
  int under = 0;
  int within = n;
  for (int bit = 30; bit >= 0; --bit) {
    const std::uint32_t middle = least | 1u << bit;
    const int count = below(middle);
    if (count <= index) {
      least = middle;
      under = count;
    } else {
      within = count;
    }
    if (within - under > 1) continue;
    // The largest below the upper bound.
    const __m256i limit = _mm256_set1_epi32(static_cast<int>(least + ((1u << bit) - 1)));
    __m256i best = _mm256_setzero_si256();
    for (int i = 0; i < n / 8; ++i) {
      const __m256i x = _mm256_loadu_si256(all + i);
      best = _mm256_max_epi32(best, _mm256_andnot_si256(_mm256_cmpgt_epi32(x, limit), x));
    }
    alignas(32) std::uint32_t eight[8];
    _mm256_store_si256(reinterpret_cast<__m256i*>(eight), best);
    std::uint32_t largest = 0;
    for (const std::uint32_t x : eight) largest = x > largest ? x : largest;
    return largest;
  }
  return least;
}

/// Least and largest so far, and where a NaN was met.
struct Ranges {
  __m256 lo, hi, unordered;

  explicit Ranges(__m256 x) : lo(x), hi(x), unordered(_mm256_cmp_ps(x, x, _CMP_UNORD_Q)) {}
  void take(__m256 x) {
    lo = _mm256_min_ps(x, lo);
    hi = _mm256_max_ps(x, hi);
    unordered = _mm256_or_ps(unordered, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  }
  // All ones are a NaN.
  __m256 least() const { return _mm256_or_ps(lo, unordered); }
  __m256 most() const { return _mm256_or_ps(hi, unordered); }
};

void row_ranges(const float* rows, int count, int dim, int group, float* lo, float* hi) {
  for (int i = 0; i < count * (dim / group); ++i, rows += group) {
    Ranges range(_mm256_loadu_ps(rows));
    for (int c = 8; c < group; c += 8) range.take(_mm256_loadu_ps(rows + c));
    if (_mm256_movemask_ps(range.unordered) != 0) {
      lo[i] = hi[i] = NAN;
      continue;
    }
    __m128 least = _mm_min_ps(_mm256_castps256_ps128(range.lo), _mm256_extractf128_ps(range.lo, 1));
    __m128 most = _mm_max_ps(_mm256_castps256_ps128(range.hi), _mm256_extractf128_ps(range.hi, 1));
    least = _mm_min_ps(least, _mm_movehl_ps(least, least));
    most = _mm_max_ps(most, _mm_movehl_ps(most, most));
    lo[i] = _mm_cvtss_f32(_mm_min_ss(least, _mm_movehdup_ps(least)));
    hi[i] = _mm_cvtss_f32(_mm_max_ss(most, _mm_movehdup_ps(most)));
  }
}

void channel_ranges(const float* rows, int count, int dim, float* lo, float* hi) {
  for (int c = 0; c < dim; c += 8) {
    Ranges range(_mm256_loadu_ps(rows + c));
    for (int row = 1; row < count; ++row) range.take(_mm256_loadu_ps(rows + row * dim + c));
    _mm256_storeu_ps(lo + c, range.least());
    _mm256_storeu_ps(hi + c, range.most());
  }
}

/// grid.h's code_of for eight numbers at a time, as whole numbers.
template <Zero zero>
struct Coder {
  explicit Coder(const Grid& g)
      : most(_mm256_set1_ps(
            static_cast<float>(zero == Zero::none ? (1 << g.bits) - 2 : (1 << g.bits) - 1))),
        middle(_mm256_set1_ps(static_cast<float>((1 << (g.bits - 1)) - 1))),
        half_up(g.half_up),
        integer(g.integer_zero) {
    for (int i = 0; i < 3; ++i) between[i] = _mm256_set1_ps(0.5f * (g.levels[i] + g.levels[i + 1]));
  }

  __m256 rounded(__m256 x) const {
    if (half_up) return _mm256_floor_ps(_mm256_add_ps(x, _mm256_set1_ps(0.5f)));
    return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }

  __m256i operator()(__m256 x, __m256 scale, __m256 origin, __m256 flat) const {
    __m256 code;
    if constexpr (zero == Zero::none) {
      code = _mm256_add_ps(rounded(_mm256_div_ps(x, scale)), middle);
    } else if constexpr (zero == Zero::value) {
      code = _mm256_andnot_ps(flat, rounded(_mm256_div_ps(_mm256_sub_ps(x, origin), scale)));
    } else if constexpr (zero == Zero::offset) {
      const __m256 place = _mm256_div_ps(x, scale);
      code = integer ? _mm256_add_ps(rounded(place), origin)
                     : _mm256_andnot_ps(flat, rounded(_mm256_add_ps(place, origin)));
    } else {
      const __m256 place = _mm256_div_ps(x, scale);
      const __m256 one = _mm256_set1_ps(1.0f);
      code = _mm256_setzero_ps();
      for (const __m256& level : between) {
        code = _mm256_add_ps(code, _mm256_and_ps(_mm256_cmp_ps(place, level, _CMP_GE_OQ), one));
      }
    }
    // Of NaN and 0 the second is taken.
    return _mm256_cvtps_epi32(_mm256_min_ps(_mm256_max_ps(code, _mm256_setzero_ps()), most));
  }

  __m256 most, middle, between[3];
  bool half_up, integer;
};

inline __m256 mask_of(__m256 flat) { return _mm256_cmp_ps(flat, _mm256_setzero_ps(), _CMP_NEQ_OQ); }

/// Four times eight whole numbers as bytes.
inline void store_bytes(const __m256i (&x)[4], std::uint8_t* out) {
  const __m256i bytes =
      _mm256_packus_epi16(_mm256_packs_epi32(x[0], x[1]), _mm256_packs_epi32(x[2], x[3]));
  // Packing works in halves: 32-bit pieces come as 0 2 4 6 1 3 5 7.
  _mm256_storeu_si256(
      reinterpret_cast<__m256i*>(out),
      _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)));
}

template <class Function>
void by_zero(const Grid& grid, Function function) {
  switch (grid.zero) {
    case Zero::none:
      return function(Coder<Zero::none>(grid));
    case Zero::value:
      return function(Coder<Zero::value>(grid));
    case Zero::offset:
      return function(Coder<Zero::offset>(grid));
    case Zero::codebook:
      return function(Coder<Zero::codebook>(grid));
  }
}

void row_codes(const Grid& grid, const ParamRows& params, const float* rows, int count, int dim,
               int group, std::uint8_t* codes) {
  by_zero(grid, [&](const auto& coder) {
    for (int i = 0; i < count * dim; i += 32) {
      const int at = i / group;
      const __m256 scale = _mm256_set1_ps(params.scale[at]);
      const __m256 zero = _mm256_set1_ps(params.zero[at]);
      const __m256 flat = mask_of(_mm256_set1_ps(params.flat[at]));
      __m256i four[4];
      for (int j = 0; j < 4; ++j) {
        four[j] = coder(_mm256_loadu_ps(rows + i + 8 * j), scale, zero, flat);
      }
      store_bytes(four, codes + i);
    }
  });
}

void channel_codes(const Grid& grid, const ParamRows& params, const float* rows, int count, int dim,
                   std::uint8_t* codes) {
  by_zero(grid, [&](const auto& coder) {
    for (int c = 0; c < dim; c += 32) {
      for (int row = 0; row < count; ++row) {
        __m256i four[4];
        for (int j = 0; j < 4; ++j) {
          const int at = c + 8 * j;
          four[j] =
              coder(_mm256_loadu_ps(rows + row * dim + at), _mm256_loadu_ps(params.scale + at),
                    _mm256_loadu_ps(params.zero + at), mask_of(_mm256_loadu_ps(params.flat + at)));
        }
        store_bytes(four, codes + row * dim + c);
      }
    }
  });
}

inline __m256i load_bytes(const std::uint8_t* codes) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes));
}

/// Words of 32 two-bit key channels of tokens g and g + 8: t = 0, 1 in the lower half's first
/// words, 2, 3 in the upper.
inline __m256i key_words(const std::uint8_t* lower, const std::uint8_t* upper) {
  const __m256i both = _mm256_or_si256(load_bytes(lower), _mm256_slli_epi16(load_bytes(upper), 2));
  // Of every eight channels e: those of bits 0 … 3 of the word's bytes, then those of bits 4 … 7.
  const __m256i order = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0, 4, 1, 5, 8, 12, 9, 13, 2, 6, 3, 7, 10, 14, 11, 15));
  const __m256i sorted = _mm256_shuffle_epi8(both, order);
  return _mm256_or_si256(sorted, _mm256_slli_epi16(_mm256_srli_si256(sorted, 8), 4));
}

void pack_key_tile(const std::uint8_t* codes, int dim, std::uint8_t* packed) {
  for (int g = 0; g < 8; ++g) {
    const std::uint8_t* lower = codes + g * dim;
    const std::uint8_t* upper = lower + 8 * dim;
    const auto words = [&](int c32) { return key_words(lower + 32 * c32, upper + 32 * c32); };
    if (dim == 64) {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(packed + g * 32),
                          _mm256_unpacklo_epi32(words(0), words(1)));
      continue;
    }
    for (int c32 = 0; c32 < dim / 32; c32 += 4) {
      const __m256i first = _mm256_unpacklo_epi32(words(c32), words(c32 + 1));
      const __m256i second = _mm256_unpacklo_epi32(words(c32 + 2), words(c32 + 3));
      const __m256i even = _mm256_unpacklo_epi64(first, second);  // t = 0 | 2
      const __m256i odd = _mm256_unpackhi_epi64(first, second);   // t = 1 | 3
      auto* out = reinterpret_cast<__m256i*>(packed + c32 / 4 * 512 + g * 64);
      _mm256_storeu_si256(out, _mm256_permute2x128_si256(even, odd, 0x20));
      _mm256_storeu_si256(out + 1, _mm256_permute2x128_si256(even, odd, 0x31));
    }
  }
}

/// Words of 32 two-bit value channels of tokens 2t, 2t + 1 and these + 8, for g = 0 … 7.
inline __m256i value_words(const std::uint8_t* codes, int dim, int t) {
  const auto halves = [&](int token) {
    const __m256i both =
        _mm256_or_si256(load_bytes(codes + token * dim),
                        _mm256_slli_epi16(load_bytes(codes + (token + 8) * dim), 4));
    const __m256i eights = _mm256_or_si256(both, _mm256_slli_epi16(_mm256_srli_si256(both, 8), 2));
    return _mm_unpacklo_epi8(_mm256_castsi256_si128(eights), _mm256_extracti128_si256(eights, 1));
  };
  const __m128i even = halves(2 * t);
  const __m128i odd = halves(2 * t + 1);
  return _mm256_set_m128i(_mm_unpackhi_epi16(even, odd), _mm_unpacklo_epi16(even, odd));
}

void pack_value_tile(const std::uint8_t* codes, int dim, std::uint8_t* packed) {
  for (int t = 0; t < 4; ++t) {
    if (dim == 64) {
      const __m256i a = value_words(codes, dim, t);
      const __m256i b = value_words(codes + 32, dim, t);
      alignas(32) std::uint64_t pairs[8];  // g = 0 1 4 5, 2 3 6 7
      _mm256_store_si256(reinterpret_cast<__m256i*>(pairs), _mm256_unpacklo_epi32(a, b));
      _mm256_store_si256(reinterpret_cast<__m256i*>(pairs) + 1, _mm256_unpackhi_epi32(a, b));
      constexpr int kRow[8] = {0, 1, 4, 5, 2, 3, 6, 7};
      for (int i = 0; i < 8; ++i) {
        _mm_storel_epi64(reinterpret_cast<__m128i*>(packed + (4 * kRow[i] + t) * 8),
                         _mm_loadl_epi64(reinterpret_cast<const __m128i*>(pairs + i)));
      }
      continue;
    }
    for (int c32 = 0; c32 < dim / 32; c32 += 4) {
      const auto words = [&](int i) { return value_words(codes + 32 * (c32 + i), dim, t); };
      const __m256i w0 = words(0), w1 = words(1), w2 = words(2), w3 = words(3);
      const __m256i low01 = _mm256_unpacklo_epi32(w0, w1), high01 = _mm256_unpackhi_epi32(w0, w1);
      const __m256i low23 = _mm256_unpacklo_epi32(w2, w3), high23 = _mm256_unpackhi_epi32(w2, w3);
      // Rows g and g + 4 in the halves.
      const __m256i rows[4] = {
          _mm256_unpacklo_epi64(low01, low23), _mm256_unpackhi_epi64(low01, low23),
          _mm256_unpacklo_epi64(high01, high23), _mm256_unpackhi_epi64(high01, high23)};
      std::uint8_t* out = packed + c32 / 4 * 512 + t * 16;
      for (int g = 0; g < 4; ++g) {
        _mm_storeu_si128(reinterpret_cast<__m128i*>(out + g * 64), _mm256_castsi256_si128(rows[g]));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(out + (g + 4) * 64),
                         _mm256_extracti128_si256(rows[g], 1));
      }
    }
  }
}

/// Whole tiles of 2 bits here, all else by the portable code.
using Pack = void (*)(const std::uint8_t*, int, int, int, int, std::uint8_t*);
using PackTile = void (*)(const std::uint8_t*, int, std::uint8_t*);

inline void pack(PackTile tile, Pack other, const std::uint8_t* codes, int first, int count,
                 int dim, int bits, std::uint8_t* packed) {
  if (bits != 2 || first % kTile != 0 || count % kTile != 0) {
    other(codes, first, count, dim, bits, packed);
    return;
  }
  for (int token = 0; token < count; token += kTile) {
    tile(codes + token * dim, dim, packed + (first + token) / kTile * (kTile * dim / 4));
  }
}

void pack_keys(const std::uint8_t* codes, int first, int count, int dim, int bits,
               std::uint8_t* packed) {
  pack(&pack_key_tile, portable_rows().pack_keys, codes, first, count, dim, bits, packed);
}

void pack_values(const std::uint8_t* codes, int first, int count, int dim, int bits,
                 std::uint8_t* packed) {
  pack(&pack_value_tile, portable_rows().pack_values, codes, first, count, dim, bits, packed);
}

}  // namespace
}  // namespace avx2

const RowOps* avx2_rows() {
  static constexpr RowOps ops = {&avx2::load,          &avx2::hadamard,       &avx2::product,
                                 &avx2::square_sums,   &avx2::rescale,        &avx2::select,
                                 &avx2::row_ranges,    &avx2::channel_ranges, &avx2::row_codes,
                                 &avx2::channel_codes, &avx2::pack_keys,      &avx2::pack_values};
  return &ops;
}

#endif

}  // namespace kvlab::kernels::cpu
