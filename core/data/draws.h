#pragma once

#include <cstdint>

namespace kvlab::data {

/// What is drawn. Numbers are part of the generator's version: never reuse or reorder them.
enum class Stream : uint32_t {
  key = 1,
  key_norm = 2,
  key_head_norm = 3,
  value = 4,
  value_norm = 5,
  query = 6,
  query_norm = 7,
  mean = 8,
  outlier_order = 9,
  sink_signs = 10,
  query_spread = 11,
  w_o = 12,
  rotation = 13,
  signs = 14,
};

/// Random numbers by address: each is a function of (seed, passage, stream, row, column) alone, so
/// that a longer sample begins with the shorter one and the order of filling does not matter.
class Draws {
 public:
  Draws(int64_t seed, int64_t passage);

  /// Standard normals of columns 0 … count − 1 of a row. row < 2^52, count ≤ 16384.
  void normals(Stream stream, uint64_t row, int64_t count, double* out) const;

  /// The normal of column 0.
  double normal(Stream stream, uint64_t row) const;

 private:
  uint32_t key_[2];
  uint32_t passage_;
};

/// Row of a token of one head: batch < 2^10, head < 2^12, token ≤ 2^24.
uint64_t row_of(int64_t batch, int64_t head, int64_t token);

}  // namespace kvlab::data
