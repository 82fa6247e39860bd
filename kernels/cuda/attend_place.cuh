#pragma once

#include <cstdint>

#include "attend_table.h"

/// Where a block of the attention kernels stands, and arithmetic that they share. Logits are in
/// base 2 throughout.
namespace kvlab::kernels::cuda {

inline constexpr int kWarp = 32;
/// Stands for "no logit yet": finite, so that differences are never NaN.
inline constexpr float kNothing = -1e30f;

/// Tokens of a record of the tuned kernels: what a warp takes at a time.
inline constexpr int kRecordTokens = 64;

/// Where a block stands: the stretch of a sequence that it has.
struct BlockPlace {
  int head, row_tile, sequence;
  int split, splits;  // number of the stretch, of how many; beyond them: tokens in 16 bits alone
  int first_place;    // of all blocks, the sequence's first
  int tokens, begin;  // tokens of the sequence, first one behind the sink
  HistoryEnds ends;

  __device__ __forceinline__ bool has_history() const { return split < splits; }
  /// Blocks that share sink and recent tokens.
  __device__ __forceinline__ int window_splits(const AttendParams& p) const {
    return p.inside ? splits : p.window;
  }
};

/// All but the lengths, where each sequence has the same number of blocks.
__device__ __forceinline__ BlockPlace block_coordinates(const AttendParams& p) {
  BlockPlace at;
  at.head = static_cast<int>(blockIdx.y);
  at.row_tile = 0;
  if (p.row_tiles > 1) {
    at.row_tile = at.head % p.row_tiles;
    at.head /= p.row_tiles;
  }
  at.sequence = static_cast<int>(blockIdx.z);
  at.split = static_cast<int>(blockIdx.x);
  at.splits = p.splits;
  at.first_place = at.sequence * p.splits;
  return at;
}

__device__ __forceinline__ void fill_in_lengths(const AttendParams& p, int tokens, BlockPlace& at) {
  at.tokens = tokens;
  at.begin = history_begin(p.cache, at.tokens);
  at.ends = history_ends(p.cache.rule, at.tokens);
}

/// Query token of a row of the KV head; division is what short launches cannot afford.
__device__ __forceinline__ int query_of(const AttendParams& p, int row) {
  return p.args.query_tokens == 1 ? 0 : row / p.group;
}

/// Offset of row `row` (of all rows of the KV head) in query, output and log_sum_exp, in rows of
/// dim.
__device__ __forceinline__ std::int64_t row_offset(const AttendParams& p, const BlockPlace& at,
                                                   int row) {
  const int query = query_of(p, row);
  return static_cast<std::int64_t>(at.sequence * p.args.query_tokens + query) * p.args.q_heads +
         at.head * p.group + row - query * p.group;
}

__device__ __forceinline__ int row_count(const AttendParams& p) {
  return p.group * p.args.query_tokens;
}

/// Tokens [0, limit) are visible to a row.
__device__ __forceinline__ int row_limit(const AttendParams& p, const BlockPlace& at, int row) {
  return at.tokens - p.args.query_tokens + query_of(p, row) + 1;
}

__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float inverse_fast(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace kvlab::kernels::cuda
