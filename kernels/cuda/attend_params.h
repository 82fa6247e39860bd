#pragma once

#include <cstdint>

#include "kvlab/kernels/cuda.h"

namespace kvlab::kernels::cuda {

/// Parameters of a launch. Grid: (splits + window blocks, kv_heads · row_tiles, batch).
struct AttendParams {
  CacheView cache;
  AttendArgs args;
  float* partial =
      nullptr;  // [batch, kv_heads · row_tiles, splits + window, rows of a tile, dim + 2]
  unsigned* ticket = nullptr;  // [batch, kv_heads · row_tiles], 0 between launches
  int splits = 1;              // blocks that share a sequence's history
  int window = 0;              // 1: one more block takes sink and recent tokens
  int row_tiles = 1;   // a row is a query head of a query token; rows of one KV head go in tiles
  int interleave = 0;  // splits take records in turn instead of a stretch each
  int group = 1;       // query heads of a KV head
  int bulk = 1;        // copies by the bulk engine (sm_90 and up), else by cp.async
};

}  // namespace kvlab::kernels::cuda
