#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string>

/// Windows once more, as buffers that tokens pass through one by one: what the closed formulas of
/// cache/windows.h are judged against.
namespace plain {

struct Rule {
  std::string flush = "block";
  int64_t sink = 0;
  int64_t recent = 0;
  int64_t key_group = 1;  // tokens of a per-channel group; 1: per token
  int64_t value_group = 1;
  bool keys = true;  // false: passthrough
  bool values = true;
};

/// A cache that gets one token after the other, with a buffer of full-precision tokens for each
/// side.
class Decoder {
 public:
  explicit Decoder(const Rule& rule) : rule_(rule) {
    const int64_t key = rule.keys ? rule.key_group : 1;
    const int64_t value = rule.values ? rule.value_group : 1;
    group_ = std::lcm(key, value);
  }

  struct Seen {
    int64_t key = 0;  // tokens that attention reads quantized
    int64_t value = 0;
    int64_t key_buffer = 0;  // full-precision tokens behind the sink, after the step
    int64_t value_buffer = 0;
  };

  /// Appends the next token, attends, and flushes in the rule's order.
  Seen step() {
    if (token_++ < rule_.sink) return {};
    ++keys_.buffer;
    ++values_.buffer;
    const bool buffered = rule_.flush == "full" || rule_.flush == "kivi";
    if (!buffered || rule_.recent == 0) {
      const int64_t unit = rule_.flush == "ring" && group_ == 1 ? 8 : group_;
      flush_block(keys_, unit);
      flush_block(values_, unit);
      return seen();
    }
    Seen attended = seen();
    flush_full(keys_);
    if (rule_.flush == "full") {
      flush_full(values_);
    } else if (values_.buffer > rule_.recent) {
      move(values_, 1);
    }
    attended.key_buffer = keys_.buffer;
    attended.value_buffer = values_.buffer;
    return attended;
  }

 private:
  struct Buffers {
    int64_t history = 0;
    int64_t buffer = 0;
  };

  static void move(Buffers& side, int64_t tokens) {
    side.history += tokens;
    side.buffer -= tokens;
  }
  void flush_block(Buffers& side, int64_t unit) const {
    // The own token always stays.
    while (side.buffer - std::max<int64_t>(rule_.recent, 1) >= unit) move(side, unit);
  }
  void flush_full(Buffers& side) const {
    if (side.buffer == rule_.recent) move(side, rule_.recent);
  }
  Seen seen() const {
    return {rule_.keys ? keys_.history : 0, rule_.values ? values_.history : 0, keys_.buffer,
            values_.buffer};
  }

  Rule rule_;
  int64_t group_;
  int64_t token_ = 0;
  Buffers keys_, values_;
};

}  // namespace plain
