#pragma once

#include "kvlab/kernels/host_device.h"

/// How attend divides sequences of unequal lengths. A place (block) takes `size` turns, a turn
/// being as many records as a block has warps; sequences lie one behind the other over all places,
/// so that one may end and the next begin within a place.
namespace kvlab::kernels::cuda {

/// Sequences that a schedule can have: one warp makes it and walks all of them.
inline constexpr int kMostScheduled = 1024;
/// Turns that a further sequence costs a place: its queries, and its part of the merge.
inline constexpr int kFurtherSequence = 4;

/// What lies in a place: from a record of a sequence's history to before one of another's.
struct alignas(16) PlaceContents {
  int first_sequence = 0, first_record = 0;
  int end_sequence = 0, end_record = 0;

  /// Zeroed memory is no schedule: every place ends behind the first record of all.
  KVLAB_HD bool exists() const { return end_sequence > 0 || end_record > 0; }
  KVLAB_HD int last_sequence() const { return end_sequence - (end_record == 0); }
};
/// Where a sequence lies.
struct alignas(8) PlaceRange {
  int first, last;
};

/// Lays sequences out, one by one.
class Placing {
 public:
  KVLAB_HD explicit Placing(int size) : size_(size), room_(size) {}

  /// The places of a sequence: of place `first` its first `head` turns, then `size` of each.
  struct Span {
    int first, last;
    int head;
    bool opens;  // place `first` begins with it
  };

  /// Lays out a sequence of `turns` (at least 1).
  KVLAB_HD Span add(int turns) {
    if (room_ < size_) room_ -= kFurtherSequence;
    if (room_ <= 0) open(1);
    Span span{place_, place_, turns < room_ ? turns : room_, room_ == size_};
    room_ -= span.head;
    if (const int rest = turns - span.head; rest > 0) {
      const int more = (rest + size_ - 1) / size_;
      open(more);
      room_ = more * size_ - rest;
      span.last = place_;
    }
    return span;
  }

  KVLAB_HD int places() const { return place_ + 1; }

 private:
  KVLAB_HD void open(int places) {
    place_ += places;
    room_ = size_;
  }

  int size_;
  int place_ = 0;
  int room_;  // turns that the place has left
};

/// Sizes between which the smallest that suffices lies. A place wastes no more than
/// kFurtherSequence turns, and a sequence costs no more.
struct PlaceSizes {
  int least, most;
};
KVLAB_HD inline PlaceSizes place_sizes(long long turns, int sequences, int places) {
  const long long all = turns + static_cast<long long>(kFurtherSequence) * sequences;
  return {static_cast<int>((turns + places - 1) / places),
          static_cast<int>((all + places - 1) / places) + kFurtherSequence};
}

}  // namespace kvlab::kernels::cuda
