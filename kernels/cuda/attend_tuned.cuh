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
                                                          int t, int chunk, int r);

  /// The block's warps make the operands, of one lane each, together. Synchronises the block.
  static __device__ __forceinline__ void make_operands(const AttendParams& p,
                                                       const QueryTile<kDim>& tile, Workshop& shop,
                                                       int warp, int warps, int lane);

  /// A warp takes them all.
  static __device__ __forceinline__ Queries take_queries(const AttendParams& p,
                                                         const BlockPlace& at,
                                                         const QueryTile<kDim>& tile,
                                                         const Workshop& shop, int lane);

  /// Row of the tile that column i of a lane's logits belongs to.
  static __device__ __forceinline__ int lane_row(int t, int i) {
    return kNarrow ? t : i / 2 * 8 + 2 * t + i % 2;
  }

  using Logits = float[4][2][kColumns];  // of tile, half (token g, token g + 8), column

  static __device__ __forceinline__ void token_key_logits(const unsigned char* record,
                                                          const Queries& q, int lane, Logits& x);

  static __device__ __forceinline__ void channel_key_logits(const unsigned char* record,
                                                            const Queries& q, int lane, Logits& x);

  static __device__ __forceinline__ void apply_norms(const unsigned char* record, bool inverse,
                                                     int lane, Logits& x);

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
                                                         float value_scale);

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
                                                    const TokenNumbers& scales);

  /// Largest value scale among those that this lane looks at; together the lanes see all of the
  /// record.
  static __device__ __forceinline__ float value_scale_bound(const unsigned char* record,
                                                            const TokenNumbers& scales, int lane);

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
                                                   const WarpParts& parts, int warp, int lane);
};

}  // namespace kvlab::kernels::cuda
