#pragma once

#include "mma.cuh"
#include "warp_row.cuh"

/// A tile of 64 numbers a lane between loading and packing, in the order in which its codes are
/// stored.
///
/// By tokens: 16 tokens × 128 channels a warp. Lane 4g + t has tokens g (row 0) and g + 8 (row 1).
/// Fragment f, column pair j and column l of lane t are channel
///   keys    32(f/2) + 8t + 4(f%2) + 2j + l
///   values  16f + 8j + 2t + l
/// By channels (keys whose groups run along tokens): 32 channels × 64 tokens a warp. Row i of lane
/// 4g + t of warp w is channel 32(g/2) + 8w + 4(g%2) + i, its number (j, l) token 8j + 2t + l.
/// Both are orders of a product's sums over columns that are permuted so.
namespace kvlab::kernels::cuda {

inline constexpr int kFastDim = 128;
inline constexpr int kFragments = kFastDim / 16;

struct Tile {
  float x[8 * kFragments];

  __device__ __forceinline__ float& at(int f, int j, int row, int l) {
    return x[8 * f + 4 * j + 2 * row + l];
  }
  __device__ __forceinline__ const float& at(int f, int j, int row, int l) const {
    return x[8 * f + 4 * j + 2 * row + l];
  }
  /// By channels.
  __device__ __forceinline__ float& of_channel(int i, int j, int l) {
    return x[32 * (i / 2) + 4 * j + 2 * (i % 2) + l];
  }
  __device__ __forceinline__ const float& of_channel(int i, int j, int l) const {
    return x[32 * (i / 2) + 4 * j + 2 * (i % 2) + l];
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

/// And back, rounded.
template <bool kBf16>
__device__ __forceinline__ std::uint32_t pair_of(float low, float high) {
  if constexpr (kBf16) return bits(__floats2bfloat162_rn(low, high));
  return bits(__floats2half2_rn(low, high));
}

/// What stands for the code 1 in a tile that is to be packed: a byte of e4m3 is then the code.
inline constexpr float kCodeUnit = 0x1p-9f;

/// Two numbers as bytes, each the nearest whole multiple of kCodeUnit, negative ones 0.
__device__ __forceinline__ std::uint32_t code_bytes(float low, float high) {
#if __CUDA_ARCH__ >= 890
  std::uint16_t bytes;
  asm("cvt.rn.satfinite.relu.e4m3x2.f32 %0, %1, %2;" : "=h"(bytes) : "f"(high), "f"(low));
  return bytes;
#else
  // A float of this size has multiples of kCodeUnit in its low bits.
  constexpr float kWhole = 8388608.0f * kCodeUnit;
  const auto byte = [](float x) { return bits_of(add(fmaxf(x, 0.0f), kWhole)) & 0xffu; };
  return byte(low) | byte(high) << 8;
#endif
}

/// Four, the first in the lowest byte.
__device__ __forceinline__ std::uint32_t code_bytes(float a, float b, float c, float d) {
#if __CUDA_ARCH__ >= 890
  // In one piece, or the compiler parts the halves again and joins them by instructions of its own.
  std::uint32_t bytes;
  asm("{\n"
      ".reg .b16 low, high;\n"
      "cvt.rn.satfinite.relu.e4m3x2.f32 low, %2, %1;\n"
      "cvt.rn.satfinite.relu.e4m3x2.f32 high, %4, %3;\n"
      "mov.b32 %0, {low, high};\n"
      "}"
      : "=r"(bytes)
      : "f"(a), "f"(b), "f"(c), "f"(d));
  return bytes;
#else
  return code_bytes(a, b) | code_bytes(c, d) << 16;
#endif
}

/// Words of the lane's codes, of a tile by tokens. Values go through a transpose, as their rows are
/// channels.
template <bool kKey>
__device__ __forceinline__ uint4 packed(const Tile& tile) {
  std::uint32_t word[4];
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    word[w] = 0;
#pragma unroll
    for (int place = 3; place >= 0; --place) {
      const int j = kKey ? place / 2 : place % 2;
      const int r = kKey ? place % 2 : place / 2;
      word[w] = word[w] * 4 + code_bytes(tile.at(2 * w, j, r, 0), tile.at(2 * w + 1, j, r, 0),
                                         tile.at(2 * w, j, r, 1), tile.at(2 * w + 1, j, r, 1));
    }
    if constexpr (!kKey) word[w] = transpose_8x8(word[w]);
  }
  return make_uint4(word[0], word[1], word[2], word[3]);
}

/// Words of one row's codes as they lie in the lane that stores them, but for a shift that depends
/// on the token: of keys one vector (l = 0), of values one for each of the lane's two columns l.
template <bool kKey>
__device__ __forceinline__ uint4 packed_row(const Tile& tile, int r, int l) {
  std::uint32_t word[4];
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    if constexpr (kKey) {
      const auto four = [&](int j) {
        return code_bytes(tile.at(2 * w, j, r, 0), tile.at(2 * w + 1, j, r, 0),
                          tile.at(2 * w, j, r, 1), tile.at(2 * w + 1, j, r, 1));
      };
      word[w] = four(0) | four(1) << 4;
    } else {
      const auto two = [&](int j) {
        return code_bytes(tile.at(2 * w, j, r, l), tile.at(2 * w + 1, j, r, l));
      };
      word[w] = two(0) | two(1) << 2;
    }
  }
  return make_uint4(word[0], word[1], word[2], word[3]);
}

}  // namespace kvlab::kernels::cuda
