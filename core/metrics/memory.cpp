#include "metrics/memory.h"

#include <algorithm>
#include <limits>

namespace kvlab::metrics {
namespace {

using Side = cache::Schedule::Side;
constexpr int64_t kIndexBytes = 4;

struct Held {
  int64_t codes = 0, params = 0, scales = 0, window = 0, centers = 0, padding = 0;
  int64_t history_elements = 0;
  int64_t elements = 0;

  int64_t quantized() const { return codes + params + scales; }
  int64_t all() const { return quantized() + window + centers + padding; }

  /// One sequence's part of a side. history: of `tokens` tokens, `dropped` of which are gone.
  void add(const SideBytes& side, int64_t sequence, int64_t history, int64_t tokens,
           int64_t dropped) {
    const auto part = [&](int64_t row) { return row / side.sequences; };
    const int64_t from_history = std::min(history, dropped);
    elements += part(side.token_elements) * tokens;
    window += part(side.captured_row) * (tokens - history - (dropped - from_history));
    if (!side.quantized) return;
    const int64_t kept = history - from_history;
    codes += side.codes.bytes(sequence, kept);
    params += side.params.bytes(sequence, kept);
    scales += side.scales.bytes(sequence, kept);
    history_elements += part(side.token_elements) * kept;
  }
};

/// What fills a cache.
struct Contents {
  const SideBytes& key;
  const SideBytes& value;
  const Padding& padding;
  const cache::Schedule& schedule;

  /// What is held at the last step of a cache of this length.
  Held at(int64_t tokens) const {
    const int64_t begin = schedule.windows().at_length(tokens).begin();
    const int64_t dropped = tokens - schedule.kept(tokens);
    Held held;
    for (int64_t b = 0; b < key.sequences; ++b) {
      const auto history = [&](Side side) {
        return schedule.boundary_at_length(side, b, tokens) - begin;
      };
      held.add(key, b, history(Side::key), tokens, dropped);
      held.add(value, b, history(Side::value), tokens, dropped);
      const int64_t pool = schedule.pool_size(history(Side::key));
      held.window += (key.captured_row + value.captured_row) / key.sequences * pool;
      held.params += kIndexBytes * pool;
    }
    held.params += schedule.score_bytes(tokens);
    for (const SideBytes* side : {&key, &value}) {
      if (side->quantized) held.centers += side->center;
    }
    held.padding = padding(tokens);
    return held;
  }
};

double bits(const Held& held) {
  return 8.0 * static_cast<double>(held.all()) / static_cast<double>(held.elements);
}

double mean_bits(const Contents& contents, int64_t length) {
  const int64_t cycle = std::min(contents.schedule.windows().cycle(), length);
  double sum = 0;
  for (int64_t tokens = length - cycle + 1; tokens <= length; ++tokens) {
    sum += bits(contents.at(tokens));
  }
  return sum / static_cast<double>(cycle);
}

at::Tensor number(double value) { return at::scalar_tensor(value, at::kDouble); }
at::Tensor number(int64_t value) { return number(static_cast<double>(value)); }

}  // namespace

Growth Growth::of_tokens(const at::Tensor& bits) {
  Growth growth;
  const int64_t first = bits[0][0].item<int64_t>();
  if (bits.eq(first).all().item<bool>()) {
    growth.row_bits = first;
    return growth;
  }
  for (int64_t b = 0; b < bits.size(0); ++b) {
    const at::Tensor sums = bits[b].cumsum(0).contiguous();
    std::vector<int64_t>& held = growth.sums.emplace_back(1, 0);
    held.insert(held.end(), sums.const_data_ptr<int64_t>(),
                sums.const_data_ptr<int64_t>() + sums.numel());
  }
  return growth;
}

int64_t Growth::bytes(int64_t sequence, int64_t tokens) const {
  int64_t bits = row_bits * (tokens / row_tokens);
  if (!sums.empty()) {
    const std::vector<int64_t>& of = sums[static_cast<size_t>(sequence)];
    const auto known = static_cast<int64_t>(of.size()) - 1;
    bits = tokens <= known ? of[static_cast<size_t>(tokens)] : of.back() * tokens / known;
  }
  return (bits + 7) / 8;
}

Arrays memory(const SideBytes& key, const SideBytes& value, const Padding& padding,
              const cache::Schedule& schedule, int64_t tokens) {
  const Contents contents{key, value, padding, schedule};
  const Held held = contents.at(tokens);
  const double history_bits = held.history_elements == 0
                                  ? std::numeric_limits<double>::quiet_NaN()
                                  : 8.0 * static_cast<double>(held.quantized()) /
                                        static_cast<double>(held.history_elements);
  return {
      {"bits_per_element", number(bits(held))},
      {"bits_at_8k", number(mean_bits(contents, 8192))},
      {"bits_at_32k", number(mean_bits(contents, 32768))},
      {"bits_at_128k", number(mean_bits(contents, 131072))},
      {"bits_per_element_hist", number(history_bits)},
      {"bytes_codes", number(held.codes)},
      {"bytes_params", number(held.params)},
      {"bytes_scales", number(held.scales)},
      {"bytes_centers", number(held.centers)},
      {"bytes_window", number(held.window)},
      {"bytes_padding", number(held.padding)},
      {"rotation_bytes", number(key.rotation + value.rotation)},
  };
}

}  // namespace kvlab::metrics
