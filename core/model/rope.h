#pragma once

#include <ATen/ATen.h>

#include <string>

namespace kvlab::model {

/// How positions turn queries and keys: `rope_parameters`, or `rope_theta` with `rope_scaling`.
struct RopeSpec {
  enum class Kind { plain, linear, llama3, yarn };
  Kind kind = Kind::plain;
  double theta = 10000;
  double factor = 1;
  double original_positions = 0;           // llama3, yarn: what the model was trained at
  double low_factor = 1, high_factor = 4;  // llama3
  double beta_fast = 32, beta_slow = 1;    // yarn
  double attention_factor = 1;             // yarn: cosines and sines are multiplied by it
  bool truncate = true;                    // yarn: whole channels bound its ramp
};

/// Cosines and sines of all positions of a sequence.
struct Angles {
  at::Tensor cos, sin;  // float32 [n, d]
};

/// float32 [d/2], as transformers computes them (its modeling_rope_utils).
at::Tensor inverse_frequencies(const RopeSpec& rope, int64_t head_dim);

/// Of positions first … first + n − 1. frequencies: as above.
Angles angles(const at::Tensor& frequencies, double attention_factor, int64_t first, int64_t n);

/// x [H, n, d]: channel i is paired with i + d/2.
at::Tensor rotate(const at::Tensor& x, const Angles& angles);

}  // namespace kvlab::model
