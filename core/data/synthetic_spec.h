#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string_view>

#include "base/dtype.h"
#include "base/part.h"

namespace kvlab::data {

enum class Pattern {
  gaussian,
  outlier_channels,
  mean_dominated,
  low_norm_sink,
  high_norm,
  modality,
  constant,
};

/// synthetic_params() as plain fields; see there for meanings and units.
struct SyntheticSpec {
  Pattern pattern = Pattern::gaussian;
  int64_t tokens, kv_heads, q_heads, head_dim, batch, hidden, model, passage;
  DType dtype = DType::bf16;
  double key_norm, mean_fraction, outlier_gain, oscillation_period, jitter, head_jitter;
  int64_t outlier_count, oscillating;
  double value_norm, query_norm, query_jitter, query_spread;
  std::set<int64_t> sink_positions;
  int64_t sink_every;
  bool sink_is_spike = true;
  double sink_norm, sink_share, sink_value_norm, sink_logit_gain;
  bool before_rope = false;
  double rope_theta;
  double high_norm, text_norm, vision_norm, constant_value;
  int64_t high_every, text_run, vision_run;

  bool is_sink(int64_t token) const;
  bool is_high(int64_t token) const;
  /// Norm of the token's key before jitter.
  double key_norm_at(int64_t token) const;
};

/// Missing parameters take their defaults. Throws Error with the sentence of refuse_synthetic.
SyntheticSpec read_spec(const Settings& params);

/// The storage type of this name: bf16, fp16 or fp32.
std::optional<DType> dtype_of(std::string_view name);

/// `params` with every default filled in.
Settings with_defaults(const Settings& params);

}  // namespace kvlab::data
