#pragma once

#include "mma.cuh"
#include "warp_row.cuh"

/// A tile of 16 tokens × 128 channels in the registers of one warp, in the order in which its codes
/// are stored: what the fast encoder does between loading and packing.
///
/// Lane 4g + t has tokens g (row 0) and g + 8 (row 1). Fragment f, column pair j and column l of
/// lane t are channel
///   keys    32(f/2) + 8t + 4(f%2) + 2j + l      (16 bytes of a token are one load)
///   values  16f + 8j + 2t + l                   (8 bytes)
/// which is the order of a product's sums over columns that are permuted so, and of the codes.
namespace kvlab::kernels::cuda {

inline constexpr int kFastDim = 128;
inline constexpr int kFragments = kFastDim / 16;

struct Tile {
  float x[kFragments][2][4];  // [f][j][2·row + l]

  __device__ __forceinline__ float& at(int f, int j, int row, int l) {
    return x[f][j][2 * row + l];
  }
};

/// A pair of 16-bit numbers as floats.
template <bool kBf16>
__device__ __forceinline__ float2 floats_of(std::uint32_t pair) {
  const auto low = static_cast<std::uint16_t>(pair);
  const auto high = static_cast<std::uint16_t>(pair >> 16);
  return kBf16 ? make_float2(from_bf16(low), from_bf16(high))
               : make_float2(from_f16(low), from_f16(high));
}

/// The two rows of a lane.
struct Rows {
  const std::uint16_t* row[2];
};

/// Tokens as they are, in the order of keys or of values.
template <bool kBf16>
__device__ __forceinline__ void load_tile(Tile& tile, const Rows& rows, bool key, int lane) {
  const int t = lane % 4;
  if (key) {
#pragma unroll
    for (int c = 0; c < kFastDim / 32; ++c) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const uint4 word = __ldg(reinterpret_cast<const uint4*>(rows.row[r] + 32 * c + 8 * t));
        const std::uint32_t pairs[4] = {word.x, word.y, word.z, word.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float2 pair = floats_of<kBf16>(pairs[i]);
          tile.at(2 * c + i / 2, i % 2, r, 0) = pair.x;
          tile.at(2 * c + i / 2, i % 2, r, 1) = pair.y;
        }
      }
    }
    return;
  }
#pragma unroll
  for (int f = 0; f < kFragments; ++f) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 pair = floats_of<kBf16>(__ldg(
          reinterpret_cast<const std::uint32_t*>(rows.row[i % 2] + 16 * f + 8 * (i / 2) + 2 * t)));
      tile.at(f, i / 2, i % 2, 0) = pair.x;
      tile.at(f, i / 2, i % 2, 1) = pair.y;
    }
  }
}

/// Sums over all channels of the squares of the lane's tokens. In float64, or a 16-bit norm would
/// now and then round the other way; rotated numbers have no such exactness to lose.
template <class Float>
__device__ __forceinline__ void square_sums(const Tile& tile, Float (&sums)[2]) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    Float part[4] = {};
#pragma unroll
    for (int i = 0; i < 4 * kFragments; ++i) {
      const Float x = tile.x[i / 4][i / 2 % 2][2 * r + i % 2];
      part[i % 4] += x * x;
    }
    Float sum = (part[0] + part[1]) + (part[2] + part[3]);
    sum += __shfl_xor_sync(kAllLanes, sum, 1);
    sums[r] = sum + __shfl_xor_sync(kAllLanes, sum, 2);
  }
}

/// How a number becomes a code: of rotated numbers by one multiply-add, which may err at ties of
/// the true quotient; of numbers that are exact by comparing with what the reference's rounded
/// quotient would be compared with.
struct Quantizer {
  float scale;   // rotated: codes per unit over the largest code; else the stored scale, infinite
                 // where all codes are 0
  float offset;  // rotated: over the largest code; else the stored zero
};

/// 2^23: a float of that size has its whole part in its low bits.
inline constexpr float kWhole = 8388608.0f;
/// Minus what the exponents of such floats leave in a word, added at the places of `places`, one
/// bit each.
template <bool kRotated>
KVLAB_HD constexpr std::uint32_t start_of_word(std::uint32_t places) {
  return kRotated ? 0u - 0x4b000000u * places : 0u;
}

template <bool kRotated>
__device__ __forceinline__ std::uint32_t code_bits(const Quantizer& q, float most_code, float x) {
  if constexpr (kRotated) {
    // Saturation to [0, 1] is free, and takes NaN to 0.
    return bits_of(fmaf(__saturatef(fmaf(x, q.scale, q.offset)), most_code, kWhole));
  } else {
    // With a scale of at most 16 bits (k + ½)·scale is exact in float32, and x − zero lies on the
    // same side of it as their rounded quotient of k + ½; half-even takes 0.5 and 2.5 down and 1.5
    // up.
    const float u = add(x, -q.offset);
    return (u > 0.5f * q.scale ? 1u : 0u) + (u >= 1.5f * q.scale ? 1u : 0u) +
           (u > 2.5f * q.scale ? 1u : 0u);
  }
}

/// Words of the lane's codes: `quantizer(f, j, row, l)` tells how each is made. Values go through a
/// transpose, as their rows are channels.
template <bool kKey, bool kRotated, class Quantizers>
__device__ __forceinline__ uint4 packed(Tile& tile, float most_code, const Quantizers& quantizer) {
  std::uint32_t word[4];
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    word[w] = start_of_word<kRotated>(0x55555555u);
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const int f = 2 * w + i / 8;
      const int j = i / 4 % 2;
      const int r = i / 2 % 2;
      const int l = i % 2;
      const int bit = 16 * l + 8 * (i / 8) + (kKey ? 4 * j + 2 * r : 4 * r + 2 * j);
      word[w] += code_bits<kRotated>(quantizer(f, j, r, l), most_code, tile.at(f, j, r, l)) << bit;
    }
    if constexpr (!kKey) word[w] = transpose_8x8(word[w]);
  }
  return make_uint4(word[0], word[1], word[2], word[3]);
}

/// Words of one row's codes as they lie in the lane that stores them, but for a shift that depends
/// on the token: of keys one vector (l = 0), of values one for each of the lane's two columns l.
template <bool kKey, bool kRotated, class Quantizers>
__device__ __forceinline__ uint4 packed_row(Tile& tile, float most_code,
                                            const Quantizers& quantizer, int r, int l) {
  std::uint32_t word[4];
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    word[w] = start_of_word<kRotated>(kKey ? 0x11111111u : 0x0505u);
#pragma unroll
    for (int i = 0; i < (kKey ? 8 : 4); ++i) {
      const int f = 2 * w + i / 2 % 2;
      const int j = i % 2;
      const int column = kKey ? i / 4 : l;
      const int bit = kKey ? 16 * column + 8 * (i / 2 % 2) + 4 * j : 8 * (i / 2) + 2 * j;
      word[w] +=
          code_bits<kRotated>(quantizer(f, j, r, column), most_code, tile.at(f, j, r, column))
          << bit;
    }
  }
  return make_uint4(word[0], word[1], word[2], word[3]);
}

}  // namespace kvlab::kernels::cuda
