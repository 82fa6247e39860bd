#pragma once

#include <functional>
#include <vector>

#include "cache/schedule.h"
#include "metrics/measured.h"

namespace kvlab::metrics {

/// How one buffer of a side grows with a sequence's history, all heads together.
struct Growth {
  int64_t row_tokens = 1;  // whole rows of so many tokens are held
  int64_t row_bits = 0;
  /// Where tokens differ, in place of row_bits: bits that a sequence's first 0, 1, … n tokens of
  /// the span take, one vector a sequence.
  std::vector<std::vector<int64_t>> sums = {};

  /// The same from bits [B, n] of each token.
  static Growth of_tokens(const at::Tensor& bits);

  /// Bytes that so many tokens take. Beyond the sample a token takes what it took there on average.
  int64_t bytes(int64_t sequence, int64_t tokens) const;
};

/// Sizes of one side's buffers, summed over its heads and, but for the growing ones, its sequences.
struct SideBytes {
  bool quantized = false;
  int64_t sequences = 1;
  int64_t token_elements = 0;  // B·Hkv·d: elements one token adds
  Growth codes, params, scales;
  int64_t captured_row = 0;  // bytes of a token in full precision
  int64_t center = 0;        // bytes of the centre, once a layer
  int64_t rotation = 0;      // bytes of rotations and codebooks
};

/// Bytes that a cache of so many tokens holds beside its rows.
using Padding = std::function<int64_t(int64_t tokens)>;

/// bits_per_element, bits_at_*, bits_per_element_hist, bytes_* and rotation_bytes of a cache of
/// `tokens` tokens. Tokens of a pool are counted with full-precision tokens beside their codes, and
/// their places (4 bytes each) with the parameters; so are the scores (4 bytes a token and head)
/// that an eviction needs.
Arrays memory(const SideBytes& key, const SideBytes& value, const Padding& padding,
              const cache::Schedule& schedule, int64_t tokens);

}  // namespace kvlab::metrics
