#pragma once

#include <functional>
#include <vector>

#include "cache/schedule.h"
#include "metrics/measured.h"

namespace kvlab::metrics {

/// Sizes of one side's buffers, summed over its heads and sequences.
struct SideBytes {
  bool quantized = false;
  int64_t sequences = 1;
  int64_t token_elements = 0;  // B·Hkv·d: elements one token adds
  int64_t row_tokens = 1;      // tokens of one row of the params buffers
  int64_t code_row = 0;        // bytes a token's codes take
  int64_t param_row = 0;       // bytes of one row of params
  int64_t scale_row = 0;       // bytes a token's scales take
  /// Where tokens differ in that, in place of it: bits that the scales of a sequence's first 0, 1,
  /// … n tokens of the span take, one vector a sequence.
  std::vector<std::vector<int64_t>> scale_bits;
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
