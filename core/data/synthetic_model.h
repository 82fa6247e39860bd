#pragma once

#include <cstdint>
#include <vector>

#include "data/synthetic_spec.h"

namespace kvlab::data {

/// What is fixed for one KV head whatever the text: drawn from `model`, not from the seed. All
/// vectors are [d].
struct KeyHead {
  std::vector<double>
      noise_scale;  // standard deviation of the noise; squares of it and of `mean` add up to d
  std::vector<double> mean;   // mean vector in the same unit
  std::vector<bool> turning;  // the mean of this channel oscillates
  std::vector<double> sink;   // unit vector of a sink's form
  /// Added to each query of the head: the shortest vector that gives sinks their logit gain, or the
  /// longest allowed one of that direction. Zero where the pattern has no sinks.
  std::vector<double> lean;
  double lean_norm = 0.0;
};

KeyHead make_key_head(const SyntheticSpec& spec, int64_t kv_head);

/// Scale of the channels of a query head, [d].
std::vector<double> make_query_scale(const SyntheticSpec& spec, int64_t q_head);

/// √Σx².
double norm_of(const std::vector<double>& x);

}  // namespace kvlab::data
