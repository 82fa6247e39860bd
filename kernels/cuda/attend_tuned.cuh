#pragma once

#include <cuda_fp16.h>

#include <algorithm>

#include "attend_table.h"
#include "attend_window.cuh"
#include "check.h"
#include "copy_ring.cuh"
#include "launch.cuh"

/// The tuned attention kernel: packed codes go to the tensor cores as they lie in memory.
///
/// Products are transposed, S' = K·q' and O' = V'·P', so that codes are the 16-row A operand and
/// the query rows of a KV head are the 8 columns. A 16-bit number whose exponent is 0 is a
/// subnormal, so a code masked at bit b of a half is code·2^(b − 24) exactly and needs no
/// conversion; the powers of two are taken out of q, of P and of the results. Scales are folded
/// into q (per channel), into the logit (per token) or into P (values), zeros are products of their
/// own. Per-token keys of 2 bits go through the 8-bit units instead, with q as a 15-bit integer in
/// two bytes.
///
/// Each warp owns whole records of 64 tokens, its own softmax and its own copy ring. The maximum is
/// lazy: P is taken against a reference that moves only if a logit passes it by 2^10; sums and
/// outputs share the reference, so the result is exact.
namespace kvlab::kernels::cuda {

inline constexpr int kRecordTokens = 64;
inline constexpr int kMostSharedBytes = 220 * 1024;  // dynamic, of a block
inline constexpr float kStart = 6.0f;        // a new reference is this far below the largest logit
inline constexpr float kHeadroom = 10.0f;    // P stays under 2^10 …
inline constexpr float kLargeScale = 60.0f;  // … and P times a value scale within fp16
inline constexpr float kLeastNormal = 6.103515625e-5f;  // of fp16

/// kIndex: place in the table (class types cannot be template arguments of kernels).
template <int kIndex>
struct Tuned {
  static constexpr Instance kInstance = kInstances[kIndex];
  static constexpr Format kFormat = kInstance.format;
  static constexpr Layout kLayout = layout_of(kFormat);
  static constexpr int kDim = kFormat.dim;
  static constexpr int kRows = kInstance.rows;
  static constexpr bool kChannel = kFormat.key.axis == Axis::channel;
  // Four rows take the even columns of a product, so that every lane has one row's logits: half the
  // softmax of the wide form, whose lanes have two. Odd columns serve the product that needs them.
  static constexpr bool kNarrow = kRows == 4;
  static constexpr bool kInt8 = kNarrow && !kChannel && kFormat.key.bits == 2;
  static constexpr bool kOffset = kFormat.key.zero == Zero::offset;
  static constexpr int kChunks = kDim / 32;  // of 32 channels
  static constexpr int kMTiles = kDim / 16;
  static constexpr int kTiles = kRows > 8 ? 2 : 1;           // of 8 columns
  static constexpr int kColumns = kNarrow ? 1 : 2 * kTiles;  // rows whose logits a lane has
  static constexpr int kKeyGroups = kChannel ? 1 : kDim / kFormat.key.group;
  static constexpr int kValueGroups = kDim / kFormat.value.group;
  static constexpr int kKeyBits = kFormat.key.bits, kValueBits = kFormat.value.bits;
  // Powers of two by which codes of the upper half of the rows, or of k, are too large.
  static constexpr float kKeyRow = kKeyBits == 8 ? 1.0f : kKeyBits == 4 ? 16.0f : 4.0f;
  static constexpr float kKeyK = kKeyBits == 2 ? 16.0f : 1.0f;
  static constexpr float kValueRow = kValueBits == 8 ? 1.0f : kValueBits == 4 ? 16.0f : 4.0f;
  static constexpr float kValueK = kValueBits == 2 ? 16.0f : 1.0f;
  static constexpr float kValueKLog = kValueBits == 2 ? 4.0f : 0.0f;
  // Where the zeros' product has a row to spare, a row of ones gives the sums of P as well.
  static constexpr bool kOnesRow = kValueGroups > 1 && kValueGroups < 8 && !kOffset;
  static constexpr int kRecord = kLayout.bytes;
  // Bounds registers: narrow forms run as three blocks of four warps on a multiprocessor where
  // sequences are many.
  static constexpr int kRegisterThreads =
      kNarrow && kDim <= 128 ? 3 * 4 * kWarp : kTunedWarps * kWarp;

  static_assert(block_tokens(kFormat) == kRecordTokens);
  static_assert(kRows * kOutputStride<kDim> * 4 <= 2 * kRecord, "a warp's output fits its ring");
  static_assert(kFormat.key.params == Type::f16 && kFormat.value.params == Type::f16);
  static_assert(kFormat.key.zero == kFormat.value.zero && stores_zero(kFormat.key));

  /// Register r (layout.h) of the words of a tile: two codes as fp16 subnormals.
  template <int kBits, int kWords>
  static __device__ __forceinline__ std::uint32_t codes(const std::uint32_t (&words)[kWords],
                                                        int r) {
    constexpr int kPerByte = 8 / kBits;
    constexpr std::uint32_t kMask = ((1u << kBits) - 1u) * 0x00010001u;
    const std::uint32_t word = words[r / (2 * kPerByte)];
    const std::uint32_t half = r / kPerByte % 2 ? word >> 8 : word;
    return half & kMask << (kBits * (r % kPerByte));
  }

  template <int kBits, int kWords>
  static __device__ __forceinline__ void load_tile(const unsigned char* codes, int tile, int lane,
                                                   std::uint32_t (&words)[kWords]) {
    constexpr int kLoad = load_words(kDim, kBits);
    const unsigned char* from = codes + tile * tile_bytes(kDim, kBits) + lane * 4 * kLoad;
#pragma unroll
    for (int i = 0; i < kWords / kLoad; ++i) {
      if constexpr (kLoad == 4) {
        const uint4 x = *reinterpret_cast<const uint4*>(from + i * 512);
        words[4 * i] = x.x, words[4 * i + 1] = x.y, words[4 * i + 2] = x.z, words[4 * i + 3] = x.w;
      } else {
        static_assert(kLoad == 2);
        const uint2 x = *reinterpret_cast<const uint2*>(from);
        words[0] = x.x, words[1] = x.y;
      }
    }
  }

  /// Eight numbers of one kind that belong to this lane's tokens, in the order 2·tile + half.
  struct TokenNumbers {
    std::uint32_t pairs[4];

    __device__ __forceinline__ explicit TokenNumbers(const unsigned char* from, int g) {
      const uint4 x = *reinterpret_cast<const uint4*>(from + g * 16);
      pairs[0] = x.x, pairs[1] = x.y, pairs[2] = x.z, pairs[3] = x.w;
    }
    __device__ __forceinline__ float get(int tile, int half) const {
      return half ? __high2float(half2_of(pairs[tile])) : __low2float(half2_of(pairs[tile]));
    }
  };

  /// Queries as operands, and what turns products into logits.
  struct Queries {
    std::uint32_t fragment[kInt8 ? 1 : kTiles][kChunks][kInt8 ? 2 : 4];
    float factor[kColumns];  // product → base-2 logit
    float sum[kKeyGroups]
             [kColumns];   // Σq of the channels of a key group, as a base-2 logit a unit of zero
    float bias[kColumns];  // q·centre
  };

  static constexpr int kWords = (kInt8 ? 2 : 4 * kTiles) * kChunks;  // operand words of a lane

  /// Room in shared memory in which a block makes the operands together.
  struct Workshop {
    std::uint32_t words[kWords][kWarp];
    float units[kRows];             // q = unit · operand
    float sums[kRows][kKeyGroups];  // Σq of the operands, as a base-2 logit a unit of zero
  };

  /// One word of the operands of lane (g, t): the queries of `chunk` that register r meets.
  static __device__ __forceinline__ std::uint32_t operand(const float* row, float unit, int g,
                                                          int t, int chunk, int r) {
    const float* from = row + 32 * chunk + 8 * t;
    const float inverse = 1.0f / unit;
    if constexpr (kInt8) {  // even columns: high bytes, odd: low bytes; r: upper half of k
      std::uint32_t packed = 0;
#pragma unroll
      for (int byte = 0; byte < 4; ++byte) {
        const int whole = __float2int_rn(from[4 * (byte % 2) + 2 * r + byte / 2] * inverse);
        const int high = (whole + 128) >> 8;
        packed |= (static_cast<std::uint32_t>(g % 2 ? whole - 256 * high : high) & 0xffu)
                  << (8 * byte);
      }
      return packed;
    } else {  // r: 2·s + (upper half of k)
      const float factor = r % 2 ? inverse / kKeyK : inverse;
      return bits(__floats2half2_rn(from[2 * r] * factor, from[2 * r + 1] * factor));
    }
  }

  /// The block's warps make the operands of one lane each together, then every warp takes them all.
  static __device__ __forceinline__ Queries make_queries(const AttendParams& p,
                                                         const BlockPlace& at,
                                                         const QueryTile<kDim>& tile,
                                                         Workshop& shop, int warp, int warps,
                                                         int lane) {
    const float scale = p.args.scale * 1.4426950408889634f;
#pragma unroll 1
    for (int row = warp; row < kRows; row += warps) {
      const float* from = tile.rotated + row * kRowStride<kDim> + lane;
      float top = 0.0f;
#pragma unroll
      for (int c = 0; c < kChunks; ++c) top = fmaxf(top, fabsf(from[32 * c]));
#pragma unroll
      for (int step = 1; step < kWarp; step *= 2) {
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, step));
      }
      // Bytes hold 15 bits and a sign; for halves a power of two, so that they lose nothing that
      // bf16 queries have.
      const float unit = !(top > 0.0f) ? 1.0f
                         : kInt8       ? top / 32512.0f
                                       : exp2f(static_cast<float>(ilogbf(top) - 2));
      if (lane == 0) shop.units[row] = unit;
      if constexpr (kChannel) continue;
      // Σq of the operands, not of the queries: codes and zero of a key then meet the same q, and
      // what its rounding adds is in proportion to the key and not to its much larger parts.
      float sums[kKeyGroups] = {};
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        const float x = from[32 * c] * (1.0f / unit);
        sums[32 * c / kFormat.key.group] += kInt8 ? rintf(x) : __half2float(__float2half_rn(x));
      }
#pragma unroll
      for (int b = 0; b < kKeyGroups; ++b) {
#pragma unroll
        for (int step = 1; step < kWarp; step *= 2) {
          sums[b] += __shfl_xor_sync(0xffffffffu, sums[b], step);
        }
        if (lane == 0) shop.sums[row][b] = sums[b] * unit * scale;
      }
    }
    __syncthreads();
    constexpr int kOfChunk = kInt8 ? 2 : 4;
#pragma unroll 1
    for (int word = warp; word < kWords; word += warps) {
      const int n = word / (kOfChunk * kChunks), chunk = word / kOfChunk % kChunks,
                r = word % kOfChunk;
      const int row = kNarrow ? lane / 8 : lane / 4 + 8 * n;
      shop.words[word][lane] = operand(tile.rotated + row * kRowStride<kDim>, shop.units[row],
                                       lane / 4, lane % 4, chunk, r);
    }
    __syncthreads();

    Queries q;
#pragma unroll
    for (int word = 0; word < kWords; ++word) {
      q.fragment[word / (kOfChunk * kChunks)][word / kOfChunk % kChunks][word % kOfChunk] =
          shop.words[word][lane];
    }
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      const int row = lane_row(lane % 4, i);
      q.factor[i] = shop.units[row] * scale * (kInt8 ? 1.0f / 16.0f : 16777216.0f);
#pragma unroll
      for (int b = 0; b < kKeyGroups; ++b) q.sum[b][i] = shop.sums[row][b];
      q.bias[i] = 0.0f;
    }
    if (p.args.key_center) {
      for (int row = 0; row < kRows; ++row) {
        const float bias =
            center_logit<kDim>(p, at.head, tile.raw + row * kRowStride<kDim>, lane, scale);
#pragma unroll
        for (int i = 0; i < kColumns; ++i) {
          if (row == lane_row(lane % 4, i)) q.bias[i] = bias;
        }
      }
    }
    return q;
  }

  /// Row of the tile that column i of a lane's logits belongs to.
  static __device__ __forceinline__ int lane_row(int t, int i) {
    return kNarrow ? t : i / 2 * 8 + 2 * t + i % 2;
  }

  using Logits = float[4][2][kColumns];  // of tile, half (token g, token g + 8), column

  static __device__ __forceinline__ void token_key_logits(const unsigned char* record,
                                                          const Queries& q, int lane, Logits& x) {
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

  static __device__ __forceinline__ void channel_key_logits(const unsigned char* record,
                                                            const Queries& q, int lane, Logits& x) {
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

  static __device__ __forceinline__ void apply_norms(const unsigned char* record, bool inverse,
                                                     int lane, Logits& x) {
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

  /// A warp's running state. Outputs and sums of the upper half of k are too small by kValueK; so
  /// are sums[1].
  struct State {
    float output[kMTiles][kTiles][4];
    float zero[kTiles][4];     // several value groups: Σ P·z, rows are groups, and Σ P (kOnesRow)
    float zeros[2][kColumns];  // one value group: Σ P·z of the lane's tokens, by half
    float sums[2][kColumns];
    float reference[kColumns];

    __device__ __forceinline__ void clear() {
#pragma unroll
      for (int n = 0; n < kTiles; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          zero[n][i] = 0.0f;
#pragma unroll
          for (int m = 0; m < kMTiles; ++m) output[m][n][i] = 0.0f;
        }
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
        zeros[0][i] = zeros[1][i] = sums[0][i] = sums[1][i] = 0.0f;
        reference[i] = kNothing;
      }
    }
  };

  /// Moves the references of rows with a logit beyond them. Rare.
  static __device__ __forceinline__ void move_references(State& state, const Logits& x,
                                                         float value_scale) {
    float largest = value_scale;
#pragma unroll
    for (int step = 1; step < kWarp; step *= 2)
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, step));
    const float extra = largest > kLargeScale ? log2f(largest / kLargeScale) : 0.0f;
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      float top = -INFINITY;
#pragma unroll
      for (int tile = 0; tile < 4; ++tile) top = fmaxf(top, fmaxf(x[tile][0][i], x[tile][1][i]));
      top = max_over_rows(top) + extra;
      if (!(top > state.reference[i] + kHeadroom)) continue;
      const float shrink = exp2_fast(state.reference[i] - (top - kStart));
      state.reference[i] = top - kStart;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        state.sums[half][i] *= shrink;
        state.zeros[half][i] *= shrink;
      }
      const int n = i / 2, column = i % 2;
      state.zero[n][column] *= shrink;
      state.zero[n][2 + column] *= shrink;
#pragma unroll
      for (int m = 0; m < kMTiles; ++m) {
        state.output[m][n][column] *= shrink;
        state.output[m][n][2 + column] *= shrink;
      }
    }
  }

  /// Adds the weight of one token and column to the sums as it is rounded for the products, so that
  /// codes, zeros and the denominator meet the same weights.
  static __device__ __forceinline__ void add_weights(State& state, const TokenNumbers& zeros,
                                                     int tile, int half, int i, float weight,
                                                     float scaled) {
    if constexpr (!kOnesRow) state.sums[half][i] += weight;
    if constexpr (kValueGroups == 1) {
      state.zeros[half][i] =
          fmaf(kOffset ? scaled : weight, zeros.get(tile, half), state.zeros[half][i]);
    }
  }

  static __device__ __forceinline__ void add_values(const unsigned char* record, const Logits& x,
                                                    int lane, State& state,
                                                    const TokenNumbers& scales) {
    const int g = lane / 4, t = lane % 4;
    const TokenNumbers zeros(record + kLayout.value_zero, kValueGroups == 1 ? g : 0);
#pragma unroll
    for (int tile = 0; tile < 4; ++tile) {
      float weights[2][kColumns];
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int i = 0; i < kColumns; ++i) {
          const float reference = half ? state.reference[i] + kValueKLog : state.reference[i];
          weights[half][i] = exp2_fast(x[tile][half][i] - reference);
        }
      std::uint32_t low[kTiles], high[kTiles];  // P as the B operand, lower and upper half of k
      if constexpr (kNarrow) {
        const __half2 pair = __floats2half2_rn(weights[0][0], weights[1][0]);
        __half2 scaled = pair;
        if constexpr (kValueGroups == 1) scaled = __hmul2(pair, half2_of(scales.pairs[tile]));
        add_weights(state, zeros, tile, 0, 0, __low2float(pair), __low2float(scaled));
        add_weights(state, zeros, tile, 1, 0, __high2float(pair), __high2float(scaled));
        low[0] = transpose_8x8(bits(scaled));  // head t in column 2t; odd columns are never read
        high[0] = __shfl_xor_sync(0xffffffffu, low[0], 4);
      } else {
#pragma unroll
        for (int n = 0; n < kTiles; ++n) {
          std::uint32_t operand[2];
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const __half2 pair = __floats2half2_rn(weights[half][2 * n], weights[half][2 * n + 1]);
            __half2 scaled = pair;
            if constexpr (kValueGroups == 1) {
              const __half2 both = half2_of(scales.pairs[tile]);
              scaled = __hmul2(pair, half ? __high2half2(both) : __low2half2(both));
            }
            float2 weight = __half22float2(pair);
            const float2 product = __half22float2(scaled);
            if constexpr (kValueGroups == 1 && !kOffset) {
              // Codes meet P·s, which is rounded again: zeros and sums then meet that over s. (Not
              // where it is subnormal or s is 0, as then P is all there is.)
              const float inverse = inverse_fast(scales.get(tile, half));
              if (product.x >= kLeastNormal) weight.x = product.x * inverse;
              if (product.y >= kLeastNormal) weight.y = product.y * inverse;
            }
            add_weights(state, zeros, tile, half, 2 * n, weight.x, product.x);
            add_weights(state, zeros, tile, half, 2 * n + 1, weight.y, product.y);
            operand[half] = transpose_8x8(bits(scaled));
          }
          low[n] = operand[0];
          high[n] = operand[1];
        }
      }
      std::uint32_t words[lane_words(kDim, kValueBits)];
      load_tile<kValueBits>(record + kLayout.value_codes, tile, lane, words);
      // Of the row of ones where there is one.
      const std::uint32_t other = kOnesRow && g == kValueGroups ? 0x3c003c00u : 0u;
      std::uint32_t zero_low = other, zero_high = other;
      if constexpr (kValueGroups > 1) {
        if (g < kValueGroups) {
          const unsigned char* from =
              record + kLayout.value_zero + 2 * (g * kRecordTokens + tile * kTile + 2 * t);
          zero_low = *reinterpret_cast<const std::uint32_t*>(from);
          zero_high = *reinterpret_cast<const std::uint32_t*>(from + 16);
        }
        if constexpr (!kOffset) {
#pragma unroll
          for (int n = 0; n < kTiles; ++n)
            mma_f16(state.zero[n], zero_low, 0, 0, zero_high, low[n], high[n]);
        }
      }
#pragma unroll
      for (int b = 0; b < kValueGroups; ++b) {
        std::uint32_t low_scaled[kTiles], high_scaled[kTiles];
        std::uint32_t s_low = 0, s_high = 0;
        if constexpr (kValueGroups > 1) {
          const unsigned char* from =
              record + kLayout.value_scale + 2 * (b * kRecordTokens + tile * kTile + 2 * t);
          s_low = *reinterpret_cast<const std::uint32_t*>(from);
          s_high = *reinterpret_cast<const std::uint32_t*>(from + 16);
        }
#pragma unroll
        for (int n = 0; n < kTiles; ++n) {
          low_scaled[n] =
              kValueGroups > 1 ? bits(__hmul2(half2_of(low[n]), half2_of(s_low))) : low[n];
          high_scaled[n] =
              kValueGroups > 1 ? bits(__hmul2(half2_of(high[n]), half2_of(s_high))) : high[n];
          if constexpr (kValueGroups > 1 && kOffset) {
            mma_f16(state.zero[n], g == b ? zero_low : 0, 0, 0, g == b ? zero_high : 0,
                    low_scaled[n], high_scaled[n]);
          }
        }
#pragma unroll
        for (int i = 0; i < kMTiles / kValueGroups; ++i) {
          const int m = b * (kMTiles / kValueGroups) + i;
          const std::uint32_t a0 = codes<kValueBits>(words, 4 * m),
                              a1 = codes<kValueBits>(words, 4 * m + 1);
          const std::uint32_t a2 = codes<kValueBits>(words, 4 * m + 2),
                              a3 = codes<kValueBits>(words, 4 * m + 3);
#pragma unroll
          for (int n = 0; n < kTiles; ++n)
            mma_f16(state.output[m][n], a0, a1, a2, a3, low_scaled[n], high_scaled[n]);
        }
      }
    }
  }

  /// Largest value scale among those that this lane looks at; together the lanes see all of the
  /// record.
  static __device__ __forceinline__ float value_scale_bound(const unsigned char* record,
                                                            const TokenNumbers& scales, int lane) {
    __half2 top;
    if constexpr (kValueGroups == 1) {
      top = __hmax2(__hmax2(half2_of(scales.pairs[0]), half2_of(scales.pairs[1])),
                    __hmax2(half2_of(scales.pairs[2]), half2_of(scales.pairs[3])));
    } else {
      constexpr int kBytes = kValueGroups * kRecordTokens * 2;
      top = __float2half2_rn(0.0f);
#pragma unroll
      for (int first = 0; first < kBytes; first += 512) {
        const uint4 x = *reinterpret_cast<const uint4*>(record + kLayout.value_scale +
                                                        (first + lane * 16) % kBytes);
        top = __hmax2(top, __hmax2(__hmax2(half2_of(x.x), half2_of(x.y)),
                                   __hmax2(half2_of(x.z), half2_of(x.w))));
      }
    }
    return fmaxf(__low2float(top), __high2float(top));
  }

  /// One record. `limits`: of each column, tokens of the record that it may see.
  static __device__ __forceinline__ void add_record(const unsigned char* record, const Queries& q,
                                                    bool inverse_norm, bool masked,
                                                    const int (&limits)[kColumns], int lane,
                                                    State& state) {
    Logits x;
    if constexpr (kChannel) {
      channel_key_logits(record, q, lane, x);
    } else {
      token_key_logits(record, q, lane, x);
    }
    apply_norms(record, inverse_norm, lane, x);
    if (masked) {
#pragma unroll
      for (int tile = 0; tile < 4; ++tile)
#pragma unroll
        for (int half = 0; half < 2; ++half)
#pragma unroll
          for (int i = 0; i < kColumns; ++i) {
            if (tile * kTile + lane / 4 + 8 * half >= limits[i]) x[tile][half][i] = -INFINITY;
          }
    }
    const TokenNumbers scales(record + kLayout.value_scale, kValueGroups == 1 ? lane / 4 : 0);
    const float scale_bound = value_scale_bound(record, scales, lane);
    bool beyond = scale_bound > kLargeScale;
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      float top = x[0][0][i];
#pragma unroll
      for (int j = 1; j < 8; ++j) top = fmaxf(top, x[j / 2][j % 2][i]);
      beyond |= top > state.reference[i] + kHeadroom;
    }
    if (__any_sync(0xffffffffu, beyond)) move_references(state, x, scale_bound);
    add_values(record, x, lane, state, scales);
  }

  /// The warp's part, unscaled, for the merge.
  static __device__ __forceinline__ void hand_over(const State& state, const Queries& q,
                                                   const MergeSpace& space, int warp, int lane) {
    const int g = lane / 4, t = lane % 4;
    float* output = space.outputs + warp * space.stride;
    constexpr float kSign = kOffset ? -1.0f : 1.0f;
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      const int row = lane_row(t, i), n = i / 2, column = i % 2;
      float sum, zero = 0.0f;
      if constexpr (kValueGroups == 1)
        zero = sum_over_rows(state.zeros[0][i] + kValueK * state.zeros[1][i]);
      const float group_zero = state.zero[n][column] + kValueK * state.zero[n][2 + column];
      if constexpr (kOnesRow) {
        sum = __shfl_sync(0xffffffffu, group_zero, kValueGroups * 4 + t);
      } else {
        sum = sum_over_rows(state.sums[0][i] + kValueK * state.sums[1][i]);
      }
      if (g == 0) {
        space.maxima[warp * kRows + row] = state.reference[i] + q.bias[i];
        space.sums[warp * kRows + row] = sum;
      }
#pragma unroll
      for (int m = 0; m < kMTiles; ++m) {
        if constexpr (kValueGroups > 1) {
          zero = __shfl_sync(0xffffffffu, group_zero, m / (kMTiles / kValueGroups) * 4 + t);
        }
        output[row * kOutputStride<kDim> + 16 * m + g] =
            fmaf(state.output[m][n][column], 16777216.0f, kSign * zero);
        output[row * kOutputStride<kDim> + 16 * m + 8 + g] =
            fmaf(state.output[m][n][2 + column], 16777216.0f / kValueRow, kSign * zero);
      }
    }
  }
};

template <int kIndex>
__global__ void __launch_bounds__(Tuned<kIndex>::kRegisterThreads, 1)
    attend_tuned(const __grid_constant__ AttendParams p) {
  using T = Tuned<kIndex>;
  constexpr int kDim = T::kDim, kRows = T::kRows;
  extern __shared__ __align__(128) unsigned char memory[];
  __shared__ std::uint64_t barriers[kTunedWarps * kStages];
  __shared__ float maxima[kTunedWarps * kRows], sums[kTunedWarps * kRows];
  __shared__ typename T::Workshop shop;
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp,
            lane = static_cast<int>(threadIdx.x) % kWarp;
  constexpr int kRing = kStages * T::kRecord;
  auto* query_memory = reinterpret_cast<float*>(memory + warps * kRing);
  const MergeSpace space{reinterpret_cast<float*>(memory), kRing / 4, maxima, sums, query_memory};
  const bool is_window = static_cast<int>(blockIdx.x) == p.splits;
  unsigned char* records = memory + warp * kRing;
  const CopyRing<T::kRecord> ring(records, barriers + warp * kStages, p.bulk != 0, lane);
  BlockPlace at = block_coordinates(p);
  int first = at.split + p.splits * warp, step = p.splits * warps;
  wait_for_predecessor();

  // Three trips to memory that do not wait for each other: length, page numbers where they can be
  // told without it, queries.
  const int tokens = p.cache.tokens[at.sequence];
  const std::int32_t* table = p.cache.block_table + at.sequence * p.cache.table_stride;
  // A lane holds the page of the warp's record number `lane` of 32: in the loop a look-up of its
  // own would be a trip to memory that each record waits for.
  int pages = 0;
  const auto look_up = [&](int turn, std::int64_t end) {
    const int record = first + (turn + lane) * step;
    if (record < end) pages = table[record];
  };
  if (p.interleave && !is_window) look_up(0, p.cache.table_stride);
  load_queries<kDim>(p, at, query_memory, kRows);
  fill_in_lengths(p, tokens, at);

  if (is_window) {
    window_part<kDim, kRows>(p, at, rotate_queries<kDim>(p, at, query_memory, kRows), space, warp,
                             warps);
  } else {
    const int history = (at.ends.key < at.ends.value ? at.ends.key : at.ends.value) - at.begin;
    int end = (history + kRecordTokens - 1) / kRecordTokens;
    if (!p.interleave) {
      const int chunk = (end + p.splits - 1) / p.splits;
      first = at.split * chunk + warp;
      step = warps;
      end = min(at.split * chunk + chunk, end);
      look_up(0, end);
    }
    const std::uint8_t* heads = p.cache.pool + static_cast<std::int64_t>(at.head) * T::kRecord;
    const std::int64_t page_bytes = static_cast<std::int64_t>(p.cache.kv_heads) * T::kRecord;
    const auto ask = [&](int turn) {
      if (turn > 0 && turn % kWarp == 0) look_up(turn, end);
      const int page = __shfl_sync(0xffffffffu, pages, turn % kWarp);
      ring.ask(turn, first + turn * step < end ? heads + page * page_bytes : nullptr);
    };
#pragma unroll
    for (int i = 0; i < kStages; ++i) ask(i);

    const QueryTile<kDim> tile = rotate_queries<kDim>(p, at, query_memory, kRows);
    const typename T::Queries queries = T::make_queries(p, at, tile, shop, warp, warps, lane);
    const int safe = min(history, row_limit(p, at, at.row_tile * kRows) - at.begin);
    typename T::State state;
    state.clear();
    int turn = 0;
    for (int record = first; record < end; record += step, ++turn) {
      ring.wait(turn);
      const bool masked = (record + 1) * kRecordTokens > safe;
      int limits[T::kColumns] = {};
      if (masked) {
#pragma unroll
        for (int i = 0; i < T::kColumns; ++i) {
          const int row = at.row_tile * kRows + T::lane_row(lane % 4, i);
          limits[i] = min(history, row_limit(p, at, row) - at.begin) - record * kRecordTokens;
        }
      }
      T::add_record(records + turn % kStages * T::kRecord, queries, p.cache.format.norm_inverse,
                    masked, limits, lane, state);
      __syncwarp();
      ask(turn + kStages);
    }
    __syncwarp();
    T::hand_over(state, queries, space, warp, lane);
  }
  release_successor();
  finish_block<kDim, kRows>(p, at, space, warps, is_window);
}

template <int kIndex>
void launch_tuned(const AttendParams& p, int warps, Stream stream) {
  using T = Tuned<kIndex>;
  static const bool raised = [] {
    KVLAB_CUDA(cudaFuncSetAttribute(attend_tuned<kIndex>,
                                    cudaFuncAttributeMaxDynamicSharedMemorySize, kMostSharedBytes));
    return true;
  }();
  static_cast<void>(raised);
  const bool rotates = p.args.key_rotation.kind != Rotation::Kind::none;
  const int bytes =
      warps * kStages * T::kRecord + (rotates ? 2 : 1) * T::kRows * kRowStride<T::kDim> * 4;
  const dim3 grid(static_cast<unsigned>(p.splits + p.window),
                  static_cast<unsigned>(p.cache.kv_heads * p.row_tiles),
                  static_cast<unsigned>(p.cache.batch));
  launch_after(attend_tuned<kIndex>, grid, warps * kWarp,
               std::max(bytes, room_for_one_launch(static_cast<int>(grid.x * grid.y * grid.z))),
               stream, p);
}

}  // namespace kvlab::kernels::cuda
