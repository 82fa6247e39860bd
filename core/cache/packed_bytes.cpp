#include "cache/packed_bytes.h"

#include <algorithm>

#include "kvlab/kernels/layout.h"

namespace kvlab::cache {
namespace {

/// Bytes of the parameters of `tokens` whole groups' tokens of one head.
int64_t param_payload(const kernels::Format& format, const kernels::SideFormat& side,
                      int64_t tokens) {
  const int64_t kinds = kernels::stores_zero(side) ? 2 : 1;
  const int64_t numbers = side.axis == kernels::Axis::token
                              ? tokens * kernels::channel_groups(format, side)
                              : tokens / side.group * format.dim;
  return kinds * numbers * kernels::size_of(side.params);
}

}  // namespace

PackedBytes& PackedBytes::operator+=(const PackedBytes& other) {
  codes += other.codes;
  params += other.params;
  scales += other.scales;
  centers += other.centers;
  window += other.window;
  padding += other.padding;
  return *this;
}

WindowRows window_rows(const kernels::WindowRule& rule, int64_t capacity, int step_tokens) {
  const int64_t sink = std::min<int64_t>(rule.sink, capacity);
  const int64_t behind = capacity - sink;
  const int64_t recent = behind == 0 ? 0 : kernels::recent_capacity(rule, step_tokens);
  return {static_cast<int>(sink), static_cast<int>(std::min(recent, behind))};
}

int64_t history_blocks(const PackedFormat& packed, int64_t tokens) {
  const int count = static_cast<int>(tokens);
  const kernels::HistoryEnds ends = kernels::history_ends(packed.rule, count);
  const int held = std::max(ends.key, ends.value) - std::min(packed.rule.sink, count);
  const int block = kernels::block_tokens(packed.format);
  return (held + block - 1) / block;
}

PackedBytes sequence_bytes(const PackedFormat& packed, int64_t kv_heads, int64_t tokens,
                           const WindowRows& rows) {
  const kernels::Format& format = packed.format;
  const int count = static_cast<int>(tokens);
  const kernels::HistoryEnds ends = kernels::history_ends(packed.rule, count);
  const int64_t begin = std::min(packed.rule.sink, count);
  const int64_t keys = ends.key - begin;
  const int64_t values = ends.value - begin;
  const int64_t row = format.dim * kernels::size_of(format.window);

  PackedBytes bytes;
  bytes.codes = kv_heads * format.dim * (keys * format.key.bits + values * format.value.bits) / 8;
  bytes.params = kv_heads * (param_payload(format, format.key, keys) +
                             param_payload(format, format.value, values));
  if (format.norm != kernels::Norm::none) {
    const int64_t norms = format.norm == kernels::Norm::heads ? 1 : kv_heads;
    bytes.scales = norms * keys * kernels::size_of(format.norm_type);
  }
  bytes.window = kv_heads * row * (2 * tokens - keys - values);
  const int64_t blocks =
      history_blocks(packed, tokens) * kv_heads * kernels::layout_of(format).bytes;
  const int64_t windows = 2 * kv_heads * row * (rows.sink + rows.recent);
  bytes.padding = blocks + windows - bytes.codes - bytes.params - bytes.scales - bytes.window;
  return bytes;
}

}  // namespace kvlab::cache
