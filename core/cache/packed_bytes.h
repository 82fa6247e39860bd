#pragma once

#include "cache/packed_format.h"

namespace kvlab::cache {

/// Bytes of a packed cache by what they are for. The sum is what its memory takes.
struct PackedBytes {
  int64_t codes = 0, params = 0, scales = 0, centers = 0;
  int64_t window = 0;   // full-precision tokens
  int64_t padding = 0;  // unused parts of blocks, copies of shared norms, free rows of the windows

  int64_t all() const { return codes + params + scales + centers + window + padding; }
  PackedBytes& operator+=(const PackedBytes& other);
};

/// Rows of 16-bit windows that a cache of at most `capacity` tokens needs for one head.
struct WindowRows {
  int sink = 0;
  int recent = 0;
};
WindowRows window_rows(const kernels::WindowRule& rule, int64_t capacity, int step_tokens);

/// Blocks that hold the history of a sequence of `tokens` tokens, for one head.
int64_t history_blocks(const PackedFormat& packed, int64_t tokens);

/// What one sequence of `tokens` tokens takes: the blocks of its history and windows of `rows`.
/// Centres are not part of it.
PackedBytes sequence_bytes(const PackedFormat& packed, int64_t kv_heads, int64_t tokens,
                           const WindowRows& rows);

}  // namespace kvlab::cache
