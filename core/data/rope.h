#pragma once

#include <ATen/ATen.h>

#include <string>
#include <vector>

namespace kvlab::data {

/// How fast the pairs of channels turn: `rope_parameters`, or `rope_theta` with `rope_scaling`, of
/// a model's configuration.
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

/// float32 [n/2] radians a position of n turned channels, as transformers computes them (its
/// modeling_rope_utils).
at::Tensor inverse_frequencies(const RopeSpec& spec, int64_t channels);

/// Rotary position embedding. Token t of a sequence stands at position `origin` + t.
struct Rope {
  enum class Layout {
    half,         // channel i turns with channel i + r/2, r the number of rotated channels
    interleaved,  // channel 2i turns with channel 2i + 1
    none,         // a layer without RoPE
  };

  Layout layout = Layout::half;
  at::Tensor frequencies;  // float32: radians a position, one a pair of channels; at most d/2
  double factor = 1.0;     // of cos and sin
  int64_t origin = 0;

  /// All channels of heads [..., d].
  static Rope of(const RopeSpec& spec, int64_t head_dim);

  /// As a capture's attributes describe it. theta: rope_theta. scaling: JSON of rope_scaling, empty
  /// where there is none (rope_type default, linear, llama3 and yarn; partial_rotary_factor).
  /// layout: rope_layout. Throws Unsupported for what is none of these.
  static Rope from(double theta, const std::string& scaling, const std::string& layout,
                   int64_t head_dim);

  /// Cosines and sines, float64 [n, pairs].
  struct Angles {
    at::Tensor cos, sin;
  };
  /// Of tokens first … first + n − 1. Angles are float32 as models compute them.
  Angles angles(int64_t first, int64_t n) const;

  /// x [..., n, d], floating, in whose type all is computed: each row turned by its angles.
  at::Tensor turned(const at::Tensor& x, const Angles& angles) const;
  /// The same of tokens first, first + 1, …
  at::Tensor turned(const at::Tensor& x, int64_t first = 0) const;
  /// The inverse.
  at::Tensor turned_back(const at::Tensor& x, int64_t first = 0) const;
};

/// JSON of the attribute rope_scaling that Rope::from reads back; empty for Kind::plain.
std::string scaling_text(const RopeSpec& spec);

}  // namespace kvlab::data
