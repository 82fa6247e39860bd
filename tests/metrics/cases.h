#pragma once

#include <ATen/ATen.h>

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "calibrate/prepare.h"
#include "data/synthetic.h"
#include "method/recipe.h"
#include "metrics/evaluate.h"
#include "quant/plain_codec.h"

/// Small samples and whole cells for tests.
namespace cases {

inline const std::set<std::string> kAll = {"error", "attention", "tni", "memory", "tokens"};

/// A preset with edits.
inline kvlab::method::Recipe recipe(const std::string& id, const kvlab::Settings& edits = {}) {
  kvlab::method::Recipe result = kvlab::method::preset(id);
  for (const auto& [key, value] : edits) {
    if (const auto wrong = kvlab::method::apply_edit(result, key, value))
      throw kvlab::Error(*wrong);
  }
  return result;
}

struct Shape {
  int64_t batch = 1, kv_heads = 2, q_heads = 4, tokens = 96, head_dim = 32;
  kvlab::DType dtype = kvlab::DType::fp32;
};

inline at::ScalarType type_of(kvlab::DType dtype) {
  return dtype == kvlab::DType::fp32   ? at::kFloat
         : dtype == kvlab::DType::fp16 ? at::kHalf
                                       : at::kBFloat16;
}

/// Gaussian keys, values and queries; probes at `positions` (all where empty).
inline kvlab::data::Sample gaussian_sample(const Shape& s, uint64_t seed,
                                           std::vector<int64_t> positions = {}) {
  if (positions.empty()) {
    for (int64_t p = 0; p < s.tokens; ++p) positions.push_back(p);
  }
  const auto count = static_cast<int64_t>(positions.size());
  kvlab::data::Sample sample;
  sample.dtype = s.dtype;
  sample.q = plain::gaussian({s.batch, s.q_heads, count, s.head_dim}, seed).to(type_of(s.dtype));
  sample.k =
      plain::gaussian({s.batch, s.kv_heads, s.tokens, s.head_dim}, seed + 1).to(type_of(s.dtype));
  sample.v =
      plain::gaussian({s.batch, s.kv_heads, s.tokens, s.head_dim}, seed + 2).to(type_of(s.dtype));
  sample.w_o = plain::gaussian({8, s.q_heads * s.head_dim}, seed + 3);
  sample.positions = at::tensor(positions, at::kLong);
  return sample;
}

/// With everything that a capture may have: RoPE, keys before it, hidden states, all queries (those
/// of the sample where it has all, else new ones).
inline kvlab::data::Sample with_more(kvlab::data::Sample sample, uint64_t seed) {
  using kvlab::data::Rope;
  const Rope rope = Rope::from(10000.0, "", "half", sample.head_dim());
  const at::Tensor before = rope.turned_back(sample.k.to(at::kFloat));
  const at::Tensor hidden = plain::gaussian({sample.batch(), sample.tokens()}, seed).abs();
  const bool all = sample.q.size(2) == sample.tokens();
  const at::Tensor q =
      all ? sample.q
          : plain::gaussian({sample.batch(), sample.q_heads(), sample.tokens(), sample.head_dim()},
                            seed + 1)
                .to(sample.q.scalar_type());
  sample.more.k_pre = [before] { return before; };
  sample.more.rope = [rope] { return rope; };
  sample.more.hidden_absmax = [hidden] { return hidden; };
  sample.more.every_query = [q] { return q; };
  return sample;
}

inline std::optional<kvlab::calibrate::CalibrationSample> calibration_of(
    const kvlab::data::Sample& sample, const std::string& content = "content") {
  const auto shared = std::make_shared<const kvlab::data::Sample>(sample);
  return kvlab::calibrate::CalibrationSample{[shared] { return shared; }, content};
}

/// Prepares and evaluates one cell; calibrated on `calibration` where it is given.
inline kvlab::metrics::Measured run(const kvlab::data::Sample& sample,
                                    const kvlab::method::Recipe& recipe,
                                    const std::set<std::string>& measure = kAll,
                                    const kvlab::data::Sample* calibration = nullptr,
                                    int64_t seed = 0, const std::string& backend = "reference") {
  kvlab::calibrate::CalibrationStore store{std::filesystem::path()};
  std::optional<kvlab::calibrate::CalibrationSample> given;
  if (calibration != nullptr) given = calibration_of(*calibration);
  const kvlab::calibrate::Prepared prepared = kvlab::calibrate::prepare(
      recipe, sample.kv_heads(), sample.head_dim(), 0, seed, given, store, {});
  const kvlab::metrics::SampleContext context(sample);
  return kvlab::metrics::evaluate(context, prepared, recipe, measure, backend);
}

inline double scalar(const kvlab::metrics::Measured& measured, const std::string& name) {
  return kvlab::metrics::scalar_of(name, measured.metrics.at(name));
}

}  // namespace cases
