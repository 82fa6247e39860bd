#pragma once

#include "kvlab/kernels/cache.h"

namespace kvlab::kernels::cuda {

enum class Side : unsigned char { key, value };

/// What a step moves into the blocks of one side, as indices of the history (0 is the first token
/// behind the sink).
struct Span {
  int begin = 0;
  int end = 0;
  int other_end = 0;  // of the other side, after the step
};

KVLAB_HD constexpr Span span_of(const WindowRule& rule, int tokens, int step, Side side) {
  const int start = rule.sink < tokens ? rule.sink : tokens;
  const HistoryEnds before = history_ends(rule, step_begin(tokens, step));
  const HistoryEnds after = history_ends(rule, tokens);
  const bool key = side == Side::key;
  Span span;
  span.begin = (key ? before.key : before.value) - start;
  // Before the sink was full the history began further left.
  if (span.begin < 0) span.begin = 0;
  span.end = (key ? after.key : after.value) - start;
  span.other_end = (key ? after.value : after.key) - start;
  return span;
}

/// Tokens of a thread block's piece of work: whole tiles, and whole groups of tokens.
KVLAB_HD constexpr int unit_tokens(const Format& f) {
  int unit = kTile;
  if (f.key.axis == Axis::channel && f.key.group > unit) unit = f.key.group;
  if (f.value.axis == Axis::channel && f.value.group > unit) unit = f.value.group;
  return unit;
}

/// Units that a run of `tokens` tokens can touch, wherever it begins.
KVLAB_HD constexpr int units_of(int tokens, int unit) {
  return tokens <= 0 ? 0 : (tokens + unit - 2) / unit + 1;
}

static_assert(units_of(1, 16) == 1 && units_of(2, 16) == 2 && units_of(17, 16) == 2 &&
              units_of(18, 16) == 3);

}  // namespace kvlab::kernels::cuda
