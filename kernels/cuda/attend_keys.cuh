#pragma once

#include "attend_tuned.cuh"

/// From a record's keys to logits, in the tuned attention.
namespace kvlab::kernels::cuda {

template <int kIndex>
__device__ __forceinline__ void Tuned<kIndex>::token_key_logits(const unsigned char* record,
                                                                const Queries& q, int lane,
                                                                Logits& x) {
  const int g = lane / 4;
  constexpr int kChunksOfGroup = kChunks / kKeyGroups;
  const TokenNumbers scales(record + kLayout.key_scale, kKeyGroups == 1 ? g : 0);
  const TokenNumbers zeros(record + kLayout.key_zero, kKeyGroups == 1 ? g : 0);
  const auto number = [&](const TokenNumbers& one_group, int section, int b, int tile, int half) {
    if constexpr (kKeyGroups == 1) return one_group.get(tile, half);
    return __half2float(*reinterpret_cast<const __half*>(
        record + section + 2 * (b * kRecordTokens + tile * kTile + g + 8 * half)));
  };
#pragma unroll
  for (int tile = 0; tile < 4; ++tile) {
    std::uint32_t words[lane_words(kDim, kKeyBits)];
    load_tile<kKeyBits>(record + kLayout.key_codes, tile, lane, words);
#pragma unroll
    for (int b = 0; b < kKeyGroups; ++b) {
      float products[2][kColumns];
      if constexpr (kInt8) {
        // Lower halves of k apart from upper ones: those are 16 times too large, and taking that
        // out of sums spares the shift that would take it out of codes.
        int low[4] = {}, high[4] = {};
        static_assert(kChunksOfGroup == 1 || kChunksOfGroup % 2 == 0);
#pragma unroll
        for (int i = 0; i < kChunksOfGroup; i += 2) {
          const int chunk = b * kChunksOfGroup + i;
          const bool pair = kChunksOfGroup > 1;
          const std::uint32_t first = words[chunk], second = pair ? words[chunk + pair] : 0;
          const auto& q0 = q.fragment[0][chunk];
          const auto& q1 = q.fragment[0][pair ? chunk + pair : chunk];
          mma_u8s8(low, first & 0x03030303u, first & 0x0c0c0c0cu, second & 0x03030303u,
                   second & 0x0c0c0c0cu, q0[0], q1[0]);
          mma_u8s8(high, first & 0x30303030u, first & 0xc0c0c0c0u, second & 0x30303030u,
                   second & 0xc0c0c0c0u, q0[1], q1[1]);
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int upper = 16 * low[2 * half] + high[2 * half],
                    lower = 16 * low[2 * half + 1] + high[2 * half + 1];
          products[half][0] = __int2float_rn(256 * upper + lower);
        }
      } else {
#pragma unroll
        for (int n = 0; n < kTiles; ++n) {
          float c[4] = {};
#pragma unroll
          for (int i = 0; i < kChunksOfGroup; ++i) {
            const int chunk = b * kChunksOfGroup + i;
#pragma unroll
            for (int s = 0; s < 2; ++s) {
              const int r = 8 * chunk + 4 * s;
              mma_f16(c, codes<kKeyBits>(words, r), codes<kKeyBits>(words, r + 1),
                      codes<kKeyBits>(words, r + 2), codes<kKeyBits>(words, r + 3),
                      q.fragment[n][chunk][2 * s], q.fragment[n][chunk][2 * s + 1]);
            }
          }
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            if (!kNarrow || i % 2 == 0) products[i / 2][2 * n + i % 2] = c[i];
          }
        }
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float s = number(scales, kLayout.key_scale, b, tile, half);
        const float z = number(zeros, kLayout.key_zero, b, tile, half);
#pragma unroll
        for (int i = 0; i < kColumns; ++i) {
          const float factor = half ? q.factor[i] * (1.0f / kKeyRow) : q.factor[i];
          const float part = kOffset ? s * (products[half][i] * factor - z * q.sum[b][i])
                                     : fmaf(products[half][i], s * factor, z * q.sum[b][i]);
          x[tile][half][i] = b == 0 ? part : x[tile][half][i] + part;
        }
      }
    }
  }
}

template <int kIndex>
__device__ __forceinline__ void Tuned<kIndex>::channel_key_logits(const unsigned char* record,
                                                                  const Queries& q, int lane,
                                                                  Logits& x) {
  const int t = lane % 4;
  constexpr int kTilesOfGroup = kChannel ? kFormat.key.group / kTile : 1;
#pragma unroll
  for (int group = 0; group < 4 / kTilesOfGroup; ++group) {
    std::uint32_t scaled[kTiles][kChunks][4];
    float zero_low[kTiles][4] = {}, zero_high[kTiles][4] = {};
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      const int offset = 2 * (group * kDim + 32 * c + 8 * t);
      const uint4 s = *reinterpret_cast<const uint4*>(record + kLayout.key_scale + offset);
      const uint4 z = *reinterpret_cast<const uint4*>(record + kLayout.key_zero + offset);
      const std::uint32_t scales[4] = {s.x, s.y, s.z, s.w};
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
#pragma unroll
        for (int r = 0; r < 4; ++r) {
          scaled[n][c][r] = bits(__hmul2(half2_of(q.fragment[n][c][r]), half2_of(scales[r])));
        }
        // Zeros as the A operand just as they were loaded: its rows g see the lower halves of k,
        // its rows g + 8 the upper ones. Two products with the matching queries leave q·z in the
        // first and last two sums; with both kinds of queries side by side in even and odd
        // columns one does.
        const auto& with = kOffset ? scaled[n][c] : q.fragment[n][c];
        if constexpr (kNarrow) {
          const bool odd = lane & 4;
          mma_f16(zero_low[n], z.x, z.y, z.z, z.w, odd ? with[1] : with[0],
                  odd ? with[3] : with[2]);
        } else {
          mma_f16(zero_low[n], z.x, z.y, z.z, z.w, with[0], with[2]);
          mma_f16(zero_high[n], z.x, z.y, z.z, z.w, with[1], with[3]);
        }
      }
    }
    float zeros[kColumns];
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      const float upper = kNarrow ? zero_low[0][3] : zero_high[i / 2][2 + i % 2];
      zeros[i] = (zero_low[i / 2][i % 2] + upper * kKeyK) * (q.factor[i] * (1.0f / 16777216.0f));
    }
#pragma unroll
    for (int inner = 0; inner < kTilesOfGroup; ++inner) {
      const int tile = group * kTilesOfGroup + inner;
      std::uint32_t words[lane_words(kDim, kKeyBits)];
      load_tile<kKeyBits>(record + kLayout.key_codes, tile, lane, words);
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        float c[4] = {};
#pragma unroll
        for (int chunk = 0; chunk < kChunks; ++chunk) {
#pragma unroll
          for (int s = 0; s < 2; ++s) {
            const int r = 8 * chunk + 4 * s;
            mma_f16(c, codes<kKeyBits>(words, r), codes<kKeyBits>(words, r + 1),
                    codes<kKeyBits>(words, r + 2), codes<kKeyBits>(words, r + 3),
                    scaled[n][chunk][2 * s], scaled[n][chunk][2 * s + 1]);
          }
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (kNarrow && i % 2) continue;
          const int column = 2 * n + i % 2;
          const float factor = i / 2 ? q.factor[column] * (1.0f / kKeyRow) : q.factor[column];
          x[tile][i / 2][column] = fmaf(c[i], factor, kOffset ? -zeros[column] : zeros[column]);
        }
      }
    }
  }
}

template <int kIndex>
__device__ __forceinline__ void Tuned<kIndex>::apply_norms(const unsigned char* record,
                                                           bool inverse, int lane, Logits& x) {
  if constexpr (kFormat.norm == Norm::none) return;
  const int g = lane / 4;
  float norms[8];
  if constexpr (kFormat.norm_type == Type::f16) {
    const TokenNumbers numbers(record + kLayout.norm, g);
#pragma unroll
    for (int i = 0; i < 8; ++i) norms[i] = numbers.get(i / 2, i % 2);
  } else {
    const auto* from = reinterpret_cast<const float4*>(record + kLayout.norm + g * 32);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float4 four = from[i];
      norms[4 * i] = four.x, norms[4 * i + 1] = four.y, norms[4 * i + 2] = four.z,
                norms[4 * i + 3] = four.w;
    }
  }
  if (inverse) {
#pragma unroll
    for (int i = 0; i < 8; ++i) norms[i] = inverse_fast(norms[i]);
  }
#pragma unroll
  for (int i = 0; i < 8; ++i)
#pragma unroll
    for (int column = 0; column < kColumns; ++column) x[i / 2][i % 2][column] *= norms[i];
}

}  // namespace kvlab::kernels::cuda
