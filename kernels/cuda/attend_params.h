#pragma once

#include <cstdint>

#include "kvlab/kernels/attend_schedule.h"
#include "kvlab/kernels/cuda.h"

namespace kvlab::kernels::cuda {

/// Parameters of a launch. Grid: (splits + window, kv_heads · row_tiles, batch).
struct AttendParams {
  CacheView cache;
  AttendArgs args;
  // [kv_heads · row_tiles, parts, rows of a tile, dim + 2]. A sequence's parts lie side by side:
  // those of the history, then those of the tokens in 16 bits.
  float* partial = nullptr;
  unsigned* ticket = nullptr;             // [batch, kv_heads · row_tiles], 0 between launches
  const PlaceContents* places = nullptr;  // the schedule (attend_schedule.h), if the plan has one
  const PlaceRange* ranges = nullptr;     // and the places of each sequence
  unsigned parts = 0;                     // of a KV head's row tile
  int splits = 1;      // blocks that share a sequence's history where nothing is scheduled
  int window = 0;      // more blocks, which share sink and recent tokens
  int inside = 0;      // 1: the history's blocks share them
  int row_tiles = 1;   // a row is a query head of a query token; rows of one KV head go in tiles
  int interleave = 0;  // splits take records in turn instead of a stretch each
  int group = 1;       // query heads of a KV head
  int bulk = 1;        // copies by the bulk engine (sm_90 and up), else by cp.async

  /// First part of a sequence whose first block is number `place` of all; a block in which a
  /// sequence ends and the next begins makes a part of each.
  KVLAB_HD unsigned first_part(int sequence, int place) const {
    return static_cast<unsigned>((sequence + place) * (1 + inside) + sequence * window);
  }
  KVLAB_HD bool has_window() const { return inside || window > 0; }
};

/// The parts of attend's scratch memory, 256-byte aligned each.
struct Scratch {
  unsigned* ticket;
  PlaceContents* places;  // [batch · splits]
  PlaceRange* ranges;     // [batch]
  float* partial;
};
Scratch divide_scratch(const AttendPlan& plan, const CacheView& cache, void* scratch);

}  // namespace kvlab::kernels::cuda
