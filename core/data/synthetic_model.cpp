#include "data/synthetic_model.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "data/draws.h"
#include "data/exact_math.h"

namespace kvlab::data {
namespace {

// A query keeps a part of its own whatever the gain asks for.
constexpr double kLargestLean = 0.95;

Draws model_draws(const SyntheticSpec& spec) { return {spec.model, 0}; }

std::vector<double> normals(const SyntheticSpec& spec, Stream stream, int64_t head) {
  std::vector<double> numbers(static_cast<size_t>(spec.head_dim));
  model_draws(spec).normals(stream, row_of(0, head, 0), spec.head_dim, numbers.data());
  return numbers;
}

/// Channels in a random order.
std::vector<size_t> shuffled_channels(const SyntheticSpec& spec, int64_t head) {
  const std::vector<double> keys = normals(spec, Stream::outlier_order, head);
  std::vector<size_t> order(keys.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return keys[a] < keys[b]; });
  return order;
}

std::vector<double> sink_direction(const SyntheticSpec& spec, int64_t head, size_t spike) {
  const size_t dim = static_cast<size_t>(spec.head_dim);
  std::vector<double> direction = normals(spec, Stream::sink_signs, head);
  const double flat = 1.0 / std::sqrt(static_cast<double>(dim));
  for (size_t c = 0; c < dim; ++c) {
    const double magnitude = spec.sink_is_spike ? (c == spike ? 1.0 : 0.0) : flat;
    direction[c] = direction[c] < 0.0 ? -magnitude : magnitude;
  }
  return direction;
}

/// The shortest w with w·(mean sink) − w·(mean of the other keys) = gain·√d.
void lean_on_sinks(const SyntheticSpec& spec, KeyHead& head) {
  const size_t dim = head.mean.size();
  const double root = std::sqrt(static_cast<double>(dim));
  const double sink_norm = spec.sink_norm * std::sqrt(spec.sink_share);
  for (size_t c = 0; c < dim; ++c) {
    // The average key of the other tokens: noise averages out, and so do channels that turn.
    const double usual = head.turning[c] ? 0.0 : spec.key_norm / root * head.mean[c];
    head.lean[c] = sink_norm * head.sink[c] - usual;
  }
  const double distance = norm_of(head.lean);
  if (distance == 0.0) return;
  head.lean_norm = std::min(spec.sink_logit_gain * root / distance, kLargestLean * spec.query_norm);
  for (double& x : head.lean) x *= head.lean_norm / distance;
}

}  // namespace

double norm_of(const std::vector<double>& x) {
  double sum = 0.0;
  for (const double element : x) sum += element * element;
  return std::sqrt(sum);
}

KeyHead make_key_head(const SyntheticSpec& spec, int64_t kv_head) {
  const size_t dim = static_cast<size_t>(spec.head_dim);
  const double root = std::sqrt(static_cast<double>(dim));
  const std::vector<size_t> order = shuffled_channels(spec, kv_head);
  const size_t outliers = std::min(dim, static_cast<size_t>(spec.outlier_count));
  const size_t turning = std::min(outliers, static_cast<size_t>(spec.oscillating));

  KeyHead head;
  head.noise_scale.assign(dim, 1.0);
  head.mean = normals(spec, Stream::mean, kv_head);
  head.turning.assign(dim, false);
  head.lean.assign(dim, 0.0);
  for (size_t i = 0; i < outliers; ++i) {
    const size_t c = order[i];
    head.noise_scale[c] = spec.outlier_gain;
    // Of one magnitude, so that every outlier channel is one.
    head.mean[c] = head.mean[c] < 0.0 ? -spec.outlier_gain : spec.outlier_gain;
    head.turning[c] = i < turning;
  }
  const double share = spec.pattern == Pattern::outlier_channels ? 0.0 : spec.mean_fraction;
  const double mean_unit = root * std::sqrt(share) / norm_of(head.mean);
  const double noise_unit = root * std::sqrt(1.0 - share) / norm_of(head.noise_scale);
  for (double& x : head.mean) x *= mean_unit;
  for (double& x : head.noise_scale) x *= noise_unit;

  head.sink = sink_direction(spec, kv_head, order[outliers % dim]);
  if (spec.pattern == Pattern::low_norm_sink) lean_on_sinks(spec, head);
  return head;
}

std::vector<double> make_query_scale(const SyntheticSpec& spec, int64_t q_head) {
  std::vector<double> scale = normals(spec, Stream::query_spread, q_head);
  for (double& x : scale) x = exact_exp(spec.query_spread * x);
  return scale;
}

}  // namespace kvlab::data
