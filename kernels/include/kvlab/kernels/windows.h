#pragma once

#include "kvlab/kernels/host_device.h"

namespace kvlab::kernels {

/// When tokens leave the recent window (contract section 4.3). `whole` is no rule of an experiment:
/// every complete group is history, the own token's too, as in a prefix that is only read.
enum class Flush : unsigned char { block, full, kivi, ring, whole };

/// The window rule of a cache, the same for all its sequences and layers.
struct WindowRule {
  Flush flush = Flush::block;
  int sink = 0;
  int recent = 0;
  int group = 1;  // least common multiple of the per-channel groups, 1 where there are none

  constexpr bool operator==(const WindowRule&) const = default;
};

/// Ends of the quantized history of a sequence; it begins at min(sink, tokens).
struct HistoryEnds {
  int key = 0;
  int value = 0;
};

/// What a cache of `tokens` tokens reads quantized at its last step, p = tokens − 1.
KVLAB_HD constexpr HistoryEnds history_ends(const WindowRule& rule, int tokens) {
  const int begin = rule.sink < tokens ? rule.sink : tokens;
  if (tokens <= 0) return {begin, begin};
  const int p = tokens - 1;
  if (rule.flush == Flush::whole) {
    const int end = begin + (tokens - begin) / rule.group * rule.group;
    return {end, end};
  }
  const bool whole_buffer =
      (rule.flush == Flush::full || rule.flush == Flush::kivi) && rule.recent > 0;
  if (whole_buffer) {
    const int past = p - begin > 0 ? p - begin : 0;
    const int end = begin + past / rule.recent * rule.recent;
    const int value = p - rule.recent > begin ? p - rule.recent : begin;
    return {end, rule.flush == Flush::kivi ? value : end};
  }
  const int unit = rule.flush == Flush::ring && rule.group == 1 ? 8 : rule.group;
  const int room = p + 1 - begin - (rule.recent > 1 ? rule.recent : 1);
  const int end = begin + (room > 0 ? room / unit * unit : 0);
  return {end, end};
}

/// Tokens that the recent ring must hold: the longest run of full-precision tokens behind the sink
/// while a step is attended, the step's own `step_tokens` included.
KVLAB_HD constexpr int recent_capacity(const WindowRule& rule, int step_tokens) {
  const bool whole_buffer =
      (rule.flush == Flush::full || rule.flush == Flush::kivi) && rule.recent > 0;
  const int unit = rule.flush == Flush::ring && rule.group == 1 ? 8 : rule.group;
  const int least = rule.recent > 1 ? rule.recent : 1;
  const int held = whole_buffer ? rule.recent + 1 : least + unit;
  return held + step_tokens;
}

}  // namespace kvlab::kernels
