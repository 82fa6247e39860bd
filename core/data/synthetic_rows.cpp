#include "data/synthetic_rows.h"

#include <algorithm>
#include <cmath>

#include "data/exact_math.h"

namespace kvlab::data {
namespace {

const double kRootTwo = std::sqrt(2.0);

}  // namespace

SyntheticRows::SyntheticRows(const SyntheticSpec& spec, int64_t seed)
    : spec_(spec), draws_(seed, spec.passage), model_draws_(spec.model, 0) {
  for (int64_t h = 0; h < spec.kv_heads; ++h) key_heads_.push_back(make_key_head(spec, h));
  for (int64_t h = 0; h < spec.q_heads; ++h) query_scales_.push_back(make_query_scale(spec, h));
}

double SyntheticRows::jitter(double sigma, Stream stream, uint64_t row) const {
  // The mean of e^(σz) is e^(σ²/2): taken out, so that norms keep the mean that was asked for.
  return exact_exp(sigma * draws_.normal(stream, row) - sigma * sigma / 2.0);
}

void SyntheticRows::constant(double element, double* out) const {
  for (int64_t c = 0; c < spec_.head_dim; ++c) out[c] = element;
}

void SyntheticRows::scale_to(double norm, double* x) const {
  double sum = 0.0;
  for (int64_t c = 0; c < spec_.head_dim; ++c) sum += x[c] * x[c];
  if (sum == 0.0) return;
  const double factor = norm / std::sqrt(sum);
  for (int64_t c = 0; c < spec_.head_dim; ++c) x[c] *= factor;
}

void SyntheticRows::base_key(const KeyHead& head, int64_t token, double* noise) const {
  const double turn =
      kRootTwo * exact_cos_turns(static_cast<double>(token) / spec_.oscillation_period);
  for (size_t c = 0; c < head.mean.size(); ++c) {
    noise[c] = head.noise_scale[c] * noise[c] + head.mean[c] * (head.turning[c] ? turn : 1.0);
  }
}

void SyntheticRows::key(int64_t batch, int64_t head, int64_t token, double* out) const {
  if (spec_.pattern == Pattern::constant) return constant(spec_.constant_value, out);
  const uint64_t row = row_of(batch, head, token);
  const double root = std::sqrt(static_cast<double>(spec_.head_dim));
  draws_.normals(Stream::key, row, spec_.head_dim, out);
  if (spec_.pattern == Pattern::gaussian) {
    for (int64_t c = 0; c < spec_.head_dim; ++c) out[c] *= spec_.key_norm / root;
    return;
  }
  const KeyHead& fixed = key_heads_[static_cast<size_t>(head)];
  if (spec_.is_sink(token)) {
    const double form = std::sqrt(spec_.sink_share);
    const double noise = std::sqrt(1.0 - spec_.sink_share) / root;
    for (size_t c = 0; c < fixed.sink.size(); ++c) out[c] = form * fixed.sink[c] + noise * out[c];
  } else {
    base_key(fixed, token, out);
  }
  const double norm = spec_.key_norm_at(token) *
                      jitter(spec_.jitter, Stream::key_norm, row_of(batch, 0, token)) *
                      jitter(spec_.head_jitter, Stream::key_head_norm, row);
  scale_to(norm, out);
}

void SyntheticRows::value(int64_t batch, int64_t head, int64_t token, double* out) const {
  if (spec_.pattern == Pattern::constant) return constant(spec_.constant_value, out);
  const uint64_t row = row_of(batch, head, token);
  draws_.normals(Stream::value, row, spec_.head_dim, out);
  if (spec_.pattern == Pattern::gaussian) {
    const double deviation = spec_.value_norm / std::sqrt(static_cast<double>(spec_.head_dim));
    for (int64_t c = 0; c < spec_.head_dim; ++c) out[c] *= deviation;
    return;
  }
  const double norm = spec_.is_sink(token) ? spec_.sink_value_norm : spec_.value_norm;
  scale_to(norm * jitter(spec_.jitter, Stream::value_norm, row), out);
}

void SyntheticRows::query(int64_t batch, int64_t head, int64_t token, double* out) const {
  const double root = std::sqrt(static_cast<double>(spec_.head_dim));
  if (spec_.pattern == Pattern::constant) return constant(spec_.query_norm / root, out);
  const uint64_t row = row_of(batch, head, token);
  draws_.normals(Stream::query, row, spec_.head_dim, out);
  if (spec_.pattern == Pattern::gaussian) {
    for (int64_t c = 0; c < spec_.head_dim; ++c) out[c] *= spec_.query_norm / root;
    return;
  }
  const std::vector<double>& scale = query_scales_[static_cast<size_t>(head)];
  for (size_t c = 0; c < scale.size(); ++c) out[c] *= scale[c];
  const double norm = spec_.query_norm * jitter(spec_.query_jitter, Stream::query_norm, row);
  const KeyHead& fixed = key_heads_[static_cast<size_t>(head / (spec_.q_heads / spec_.kv_heads))];
  if (fixed.lean_norm == 0.0) return scale_to(norm, out);

  // The query's own part is at right angles to the lean, which alone sets the gain of the sinks.
  const std::vector<double>& lean = fixed.lean;
  const double lean_square = fixed.lean_norm * fixed.lean_norm;
  double along = 0.0;
  for (size_t c = 0; c < lean.size(); ++c) along += out[c] * lean[c];
  for (size_t c = 0; c < lean.size(); ++c) out[c] -= along / lean_square * lean[c];
  scale_to(std::sqrt(std::max(0.0, norm * norm - lean_square)), out);
  for (size_t c = 0; c < lean.size(); ++c) out[c] += lean[c];
}

void SyntheticRows::w_o(int64_t row, int64_t head, double* out) const {
  const double deviation =
      1.0 / std::sqrt(static_cast<double>(spec_.q_heads) * static_cast<double>(spec_.head_dim));
  model_draws_.normals(Stream::w_o, row_of(0, head, row), spec_.head_dim, out);
  for (int64_t c = 0; c < spec_.head_dim; ++c) out[c] *= deviation;
}

}  // namespace kvlab::data
