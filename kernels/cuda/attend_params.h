#pragma once

#include <cstdint>

#include "kvlab/kernels/cuda.h"

namespace kvlab::kernels::cuda {

/// Parameters of a launch. Grid: (splits + window, kv_heads · row_tiles, batch).
struct AttendParams {
  CacheView cache;
  AttendArgs args;
  // [batch, kv_heads · row_tiles, splits + window_parts, rows of a tile, dim + 2]: the parts of the
  // history, then those of the tokens in 16 bits.
  float* partial = nullptr;
  unsigned* ticket = nullptr;  // [batch, kv_heads · row_tiles], 0 between launches
  int splits = 1;              // blocks that share a sequence's history
  int window = 0;              // more blocks, which share sink and recent tokens
  int inside = 0;              // 1: the history's blocks share them
  int row_tiles = 1;   // a row is a query head of a query token; rows of one KV head go in tiles
  int interleave = 0;  // splits take records in turn instead of a stretch each
  int group = 1;       // query heads of a KV head
  int bulk = 1;        // copies by the bulk engine (sm_90 and up), else by cp.async

  /// Blocks that have a share of sink and recent tokens.
  KVLAB_HD int window_parts() const { return inside ? splits : window; }
};

}  // namespace kvlab::kernels::cuda
