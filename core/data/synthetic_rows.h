#pragma once

#include <cstdint>
#include <vector>

#include "data/draws.h"
#include "data/synthetic_model.h"

namespace kvlab::data {

/// Rows of the generated tensors, one head of one token at a time, each [d] and in double. Each row
/// depends on the model's weights and on (seed, passage, batch, head, token) only.
class SyntheticRows {
 public:
  SyntheticRows(const SyntheticSpec& spec, int64_t seed);

  void key(int64_t batch, int64_t head, int64_t token, double* out) const;
  void value(int64_t batch, int64_t head, int64_t token, double* out) const;
  void query(int64_t batch, int64_t head, int64_t token, double* out) const;
  /// Columns of query head `head` of row `row` of W_O.
  void w_o(int64_t row, int64_t head, double* out) const;

 private:
  void base_key(const KeyHead& head, int64_t token, double* noise) const;
  double jitter(double sigma, Stream stream, uint64_t row) const;
  void constant(double element, double* out) const;
  void scale_to(double norm, double* x) const;

  SyntheticSpec spec_;
  Draws draws_;
  Draws model_draws_;
  std::vector<KeyHead> key_heads_;
  std::vector<std::vector<double>> query_scales_;
};

}  // namespace kvlab::data
