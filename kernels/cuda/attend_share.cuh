#pragma once

#include "attend_place.cuh"

/// What a block of the tuned attention takes: its split of one sequence's history or, by a schedule
/// (attend_schedule.h), what lies in its place: sequences one after the other, of the first and the
/// last a stretch. Read anew for each sequence, as registers are short in between.
namespace kvlab::kernels::cuda {

inline constexpr int kAllRecords = 0x7fffffff;

/// Blocks of the tokens in 16 bits alone have one sequence always.
__device__ __forceinline__ bool of_window(const AttendParams& p) {
  return static_cast<int>(blockIdx.x) >= p.splits;
}

/// The block's place by the schedule; of a window's block the first, which tells whether there is
/// a schedule. After wait_for_predecessor.
__device__ __forceinline__ PlaceContents place_of_block(const AttendParams& p) {
  const int place = static_cast<int>(blockIdx.z) * p.splits + static_cast<int>(blockIdx.x);
  const int4 x = reinterpret_cast<const int4*>(p.places)[of_window(p) ? 0 : place];
  return {x.x, x.y, x.z, x.w};
}

/// What of a BlockPlace the merge needs again, in shared memory: registers are short in between.
struct KeptPlace {
  int sequence, split, splits, first_place;

  /// Before a barrier of the block.
  __device__ __forceinline__ void keep(const BlockPlace& at) {
    if (threadIdx.x > 0) return;
    sequence = at.sequence, split = at.split, splits = at.splits, first_place = at.first_place;
  }
  __device__ __forceinline__ void give_back(BlockPlace& at) const {
    at.sequence = sequence, at.split = split, at.splits = splits, at.first_place = first_place;
  }
};

/// The block's share of a sequence.
template <bool kScheduled>
struct Share {
  BlockPlace at;                     // all but the lengths
  bool scheduled = false;            // or its split of all records
  int first = 0, end = kAllRecords;  // records, if the sequence has as many

  __device__ __forceinline__ Share(const AttendParams& p, const PlaceContents& place, int sequence)
      : at(block_coordinates(p)) {
    if constexpr (!kScheduled) return;
    if (!place.exists()) return;
    const PlaceRange range = p.ranges[sequence];
    const int split = static_cast<int>(blockIdx.x);
    at.sequence = sequence;
    at.splits = range.last - range.first + 1;
    at.first_place = range.first;
    if (of_window(p)) {
      at.split = at.splits + split - p.splits;
      return;
    }
    scheduled = true;
    at.split = static_cast<int>(blockIdx.z) * p.splits + split - range.first;
    if (sequence == place.first_sequence) first = place.first_record;
    if (sequence == place.end_sequence) end = place.end_record;
  }
};

}  // namespace kvlab::kernels::cuda
