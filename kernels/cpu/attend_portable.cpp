#include <cmath>

#include "cpu/attend_ops.h"
#include "cpu/decode_token.h"

namespace kvlab::kernels::cpu {
namespace {

float dot(const float* a, const float* b, int dim) {
  float sums[8] = {};  // independent chains; also the better conditioned sum
  for (int c = 0; c < dim; c += 8) {
    for (int i = 0; i < 8; ++i) sums[i] += a[c + i] * b[c + i];
  }
  return ((sums[0] + sums[4]) + (sums[1] + sums[5])) + ((sums[2] + sums[6]) + (sums[3] + sums[7]));
}

void add_times(float weight, const float* x, int dim, float* sum) {
  for (int c = 0; c < dim; ++c) sum[c] += weight * x[c];
}

void packed_logits(const PackedSide& keys, int count, const float* query, int rows, float* logits,
                   int stride) {
  const int dim = keys.format->dim;
  float key[256];
  for (int t = 0; t < count; ++t) {
    decode_token<Side::key>(keys, t, key);
    const float norm = norm_factor(keys, t);
    for (int r = 0; r < rows; ++r) {
      logits[r * stride + t] = norm * dot(query + r * dim, key, dim);
    }
  }
}

void packed_sums(const PackedSide& values, int count, const float* weights, int stride, int rows,
                 float* sums) {
  const int dim = values.format->dim;
  float value[256];
  for (int t = 0; t < count; ++t) {
    decode_token<Side::value>(values, t, value);
    for (int r = 0; r < rows; ++r) add_times(weights[r * stride + t], value, dim, sums + r * dim);
  }
}

void window_logits(const std::uint16_t* const* keys, int count, int dim, Type type,
                   const float* query, int rows, float* logits, int stride) {
  float key[256];
  for (int t = 0; t < count; ++t) {
    for (int c = 0; c < dim; ++c) key[c] = load_number(keys[t], c, type);
    for (int r = 0; r < rows; ++r) logits[r * stride + t] = dot(query + r * dim, key, dim);
  }
}

void window_sums(const std::uint16_t* const* values, int count, int dim, Type type,
                 const float* weights, int stride, int rows, float* sums) {
  float value[256];
  for (int t = 0; t < count; ++t) {
    for (int c = 0; c < dim; ++c) value[c] = load_number(values[t], c, type);
    for (int r = 0; r < rows; ++r) add_times(weights[r * stride + t], value, dim, sums + r * dim);
  }
}

float largest_logit(const float* logits, int n, float most) {
  for (int i = 0; i < n; ++i) most = logits[i] > most ? logits[i] : most;
  return most;
}

float weights(float* logits, int n, float most) {
  float sum = 0;
  for (int i = 0; i < n; ++i) {
    logits[i] = std::exp(logits[i] - most);
    sum += logits[i];
  }
  return sum;
}

}  // namespace

const AttendOps& portable_attend() {
  static constexpr AttendOps ops = {&packed_logits, &packed_sums,   &window_logits,
                                    &window_sums,   &largest_logit, &weights};
  return ops;
}

}  // namespace kvlab::kernels::cpu
