#include "metrics/memory.h"

#include <algorithm>
#include <limits>

namespace kvlab::metrics {
namespace {

using Side = cache::Windows::Side;

struct Held {
  int64_t codes = 0, params = 0, scales = 0, window = 0, centers = 0, padding = 0;
  int64_t history_elements = 0;
  int64_t elements = 0;

  int64_t quantized() const { return codes + params + scales; }
  int64_t all() const { return quantized() + window + centers + padding; }

  void add(const SideBytes& side, int64_t history, int64_t tokens) {
    elements += side.token_elements * tokens;
    window += side.captured_row * (tokens - history);
    if (!side.quantized) return;
    codes += side.code_row * history;
    params += side.param_row * (history / side.row_tokens);
    scales += side.scale_row * history;
    centers += side.center;
    history_elements += side.token_elements * history;
  }
};

/// What fills a cache.
struct Contents {
  const SideBytes& key;
  const SideBytes& value;
  const Padding& padding;
  const cache::Windows& windows;

  /// What is held at the last step of a cache of this length.
  Held at(int64_t tokens) const {
    const cache::Windows rule = windows.at_length(tokens);
    Held held;
    held.add(key, rule.boundary(Side::key, tokens - 1) - rule.begin(), tokens);
    held.add(value, rule.boundary(Side::value, tokens - 1) - rule.begin(), tokens);
    held.padding = padding(tokens);
    return held;
  }
};

double bits(const Held& held) {
  return 8.0 * static_cast<double>(held.all()) / static_cast<double>(held.elements);
}

double mean_bits(const Contents& contents, int64_t length) {
  const int64_t cycle = std::min(contents.windows.cycle(), length);
  double sum = 0;
  for (int64_t tokens = length - cycle + 1; tokens <= length; ++tokens) {
    sum += bits(contents.at(tokens));
  }
  return sum / static_cast<double>(cycle);
}

at::Tensor number(double value) { return at::scalar_tensor(value, at::kDouble); }
at::Tensor number(int64_t value) { return number(static_cast<double>(value)); }

}  // namespace

Arrays memory(const SideBytes& key, const SideBytes& value, const Padding& padding,
              const cache::Windows& windows, int64_t tokens) {
  const Contents contents{key, value, padding, windows};
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
