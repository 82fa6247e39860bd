#pragma once

#include <cstdint>
#include <string>

#include "base/part.h"

namespace kvlab::cache {

/// Which tokens a cache reads in quantized form at each step (contract section 4.3).
class Windows {
 public:
  enum class Flush { block, full, kivi, ring, dynamic };
  enum class Side { key, value };

  /// recipe: a whole recipe's flat settings. tokens: T of the sample.
  Windows(const Settings& recipe, int64_t tokens);

  /// First token that is ever quantized: min(sink, T).
  int64_t begin() const { return begin_; }

  Flush flush() const { return flush_; }

  /// False: passthrough, no history.
  bool quantizes(Side side) const { return side == Side::key ? keys_ : values_; }

  /// At step p (the cache holds tokens 0..p) tokens [begin, boundary) are read quantized; under
  /// `dynamic` where all blocks are even (see Schedule).
  int64_t boundary(Side side, int64_t p) const;

  /// Tokens quantized together: the least common multiple of the per-channel groups, 1 where there
  /// are none.
  int64_t group() const { return group_; }

  /// End of the last complete group: errors are measured over [begin, span_end).
  int64_t span_end() const { return begin_ + group_ * ((tokens_ - begin_) / group_); }

  /// Lengths over which bits at a length are averaged: R under full and kivi, else the flush unit.
  int64_t cycle() const;

  /// The same rule for a cache of another length.
  Windows at_length(int64_t tokens) const;
  /// The same rule for `tokens` tokens of a history, behind the sink.
  Windows behind_sink(int64_t tokens) const;

 private:
  Windows() = default;

  int64_t tokens_ = 0;
  int64_t sink_ = 0;
  int64_t begin_ = 0;
  int64_t recent_ = 0;
  int64_t group_ = 1;
  int64_t unit_ = 1;  // tokens a block flush moves: group, or 8 under ring
  Flush flush_ = Flush::block;
  bool keys_ = true;
  bool values_ = true;
};

}  // namespace kvlab::cache
