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
/// so that a Hadamard rotation is a product with a 16 × 16 matrix of signs over the four channel
/// bits that t, j and l carry, followed by butterflies over f, and no number changes its lane.
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

/// The two rows of a lane: null where the tile has no such token.
struct Rows {
  const std::uint16_t* row[2];
};

template <class Vector>
__device__ __forceinline__ Vector load_or_zero(const std::uint16_t* row, int channel) {
  return row ? *reinterpret_cast<const Vector*>(row + channel) : Vector{};
}

/// Words of a lane for the signs' product: [column pair j][half of k], two 16-bit signs a word.
struct Signs {
  std::uint32_t word[2][2];
};

/// The channel bits of an index of the product: t, then the upper and the lower of the lane's own
/// two bits.
KVLAB_HD constexpr int product_bits(int t, int upper, int lower) {
  return t << 2 | upper << 1 | lower;
}

template <bool kBf16>
__device__ Signs hadamard_signs(bool key, int lane) {
  const int g = lane / 4;
  const int t = lane % 4;
  constexpr std::uint32_t one = kBf16 ? 0x3f80u : 0x3c00u;
  Signs signs;
  for (int j = 0; j < 2; ++j) {
    const int column = key ? product_bits(g / 2, j, g % 2) : 8 * j + g;
    for (int half = 0; half < 2; ++half) {
      const auto sign = [&](int lower) {
        return one | (__popc(column & product_bits(t, half, lower)) % 2 ? 0x8000u : 0u);
      };
      signs.word[j][half] = sign(0) | sign(1) << 16;
    }
  }
  return signs;
}

/// Row sums with signs, √d times the rotation.
template <bool kBf16>
__device__ __forceinline__ void multiply_signs(Tile& tile, int f, const Signs& signs,
                                               std::uint32_t a0, std::uint32_t a1, std::uint32_t a2,
                                               std::uint32_t a3) {
#pragma unroll
  for (int j = 0; j < 2; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) tile.x[f][j][i] = 0.0f;
    mma_16<kBf16>(tile.x[f][j], a0, a1, a2, a3, signs.word[j][0], signs.word[j][1]);
  }
}

__device__ __forceinline__ void butterflies(Tile& tile) {
#pragma unroll
  for (int bit = 1; bit < kFragments; bit *= 2) {
#pragma unroll
    for (int f = 0; f < kFragments; ++f) {
      if (f & bit) continue;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const float a = tile.x[f][i / 4][i % 4];
        const float b = tile.x[f | bit][i / 4][i % 4];
        tile.x[f][i / 4][i % 4] = add(a, b);
        tile.x[f | bit][i / 4][i % 4] = add(a, -b);
      }
    }
  }
}

/// Keys, rotated up to √d or as they are.
template <bool kBf16, bool kHadamard>
__device__ __forceinline__ void load_keys(Tile& tile, const Rows& rows, int lane) {
  const int t = lane % 4;
  uint4 word[kFastDim / 32][2];
#pragma unroll
  for (int c = 0; c < kFastDim / 32; ++c) {
#pragma unroll
    for (int r = 0; r < 2; ++r) word[c][r] = load_or_zero<uint4>(rows.row[r], 32 * c + 8 * t);
  }
  if constexpr (kHadamard) {
    const Signs signs = hadamard_signs<kBf16>(true, lane);
#pragma unroll
    for (int c = 0; c < kFastDim / 32; ++c) {
      const uint4 a = word[c][0];
      const uint4 b = word[c][1];
      multiply_signs<kBf16>(tile, 2 * c, signs, a.x, b.x, a.y, b.y);
      multiply_signs<kBf16>(tile, 2 * c + 1, signs, a.z, b.z, a.w, b.w);
    }
    butterflies(tile);
  } else {
#pragma unroll
    for (int c = 0; c < kFastDim / 32; ++c) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const std::uint32_t pairs[4] = {word[c][r].x, word[c][r].y, word[c][r].z, word[c][r].w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float2 pair = floats_of<kBf16>(pairs[i]);
          tile.at(2 * c + i / 2, i % 2, r, 0) = pair.x;
          tile.at(2 * c + i / 2, i % 2, r, 1) = pair.y;
        }
      }
    }
  }
}

template <bool kBf16, bool kHadamard>
__device__ __forceinline__ void load_values(Tile& tile, const Rows& rows, int lane) {
  const int t = lane % 4;
  if constexpr (kHadamard) {
    uint2 word[kFragments][2];
#pragma unroll
    for (int f = 0; f < kFragments; ++f) {
#pragma unroll
      for (int r = 0; r < 2; ++r) word[f][r] = load_or_zero<uint2>(rows.row[r], 16 * f + 4 * t);
    }
    const Signs signs = hadamard_signs<kBf16>(false, lane);
#pragma unroll
    for (int f = 0; f < kFragments; ++f) {
      multiply_signs<kBf16>(tile, f, signs, word[f][0].x, word[f][1].x, word[f][0].y, word[f][1].y);
    }
    butterflies(tile);
  } else {
#pragma unroll
    for (int f = 0; f < kFragments; ++f) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 pair = floats_of<kBf16>(
            load_or_zero<std::uint32_t>(rows.row[i % 2], 16 * f + 8 * (i / 2) + 2 * t));
        tile.at(f, i / 2, i % 2, 0) = pair.x;
        tile.at(f, i / 2, i % 2, 1) = pair.y;
      }
    }
  }
}

/// Sum over the four lanes of a token.
__device__ __forceinline__ float quad_sum(float x) {
  x = add(x, __shfl_xor_sync(kAllLanes, x, 1));
  return add(x, __shfl_xor_sync(kAllLanes, x, 2));
}

/// Squares of the lane's tokens, summed over all channels.
__device__ __forceinline__ void square_sums(const Tile& tile, float (&sums)[2]) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float part[kFragments];
#pragma unroll
    for (int f = 0; f < kFragments; ++f) {
      const float* a = tile.x[f][0] + 2 * r;
      const float* b = tile.x[f][1] + 2 * r;
      part[f] = a[0] * a[0] + a[1] * a[1] + (b[0] * b[0] + b[1] * b[1]);
    }
#pragma unroll
    for (int step = kFragments / 2; step > 0; step /= 2) {
#pragma unroll
      for (int f = 0; f < step; ++f) part[f] = add(part[f], part[f + step]);
    }
    sums[r] = quad_sum(part[0]);
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
/// What the exponents of sixteen such floats, added at two bits' distance, leave in a word.
inline constexpr std::uint32_t kWholeBits = 0x4b000000u * 0x55555555u;

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
    word[w] = kRotated ? 0u - kWholeBits : 0u;
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

}  // namespace kvlab::kernels::cuda
