#pragma once

#include <ATen/ATen.h>

#include <string>
#include <vector>

namespace kvlab::data {

/// Rotary position embedding as a capture's attributes describe it. Token t of a sequence stands at
/// position t.
struct Rope {
  enum class Layout {
    half,         // channel i turns with channel i + r/2, r the number of rotated channels
    interleaved,  // channel 2i turns with channel 2i + 1
    none,         // a layer without RoPE
  };

  Layout layout = Layout::half;
  std::vector<float> frequencies;  // radians a position, one a pair of channels; at most d/2
  double factor = 1.0;             // of cos and sin

  /// theta: of the attribute rope_theta. scaling: JSON of rope_scaling, empty where there is none
  /// (rope_type default, linear and llama3; partial_rotary_factor). layout: of rope_layout. Throws
  /// Unsupported for what is none of these.
  static Rope from(double theta, const std::string& scaling, const std::string& layout,
                   int64_t head_dim);

  /// x [..., n, d], floating: each row turned to its position, rows standing at `first`, first + 1,
  /// … Angles are float32 as models compute them, all else is in x's type.
  at::Tensor turned(const at::Tensor& x, int64_t first = 0) const { return turn(x, first, 1.0); }
  /// The inverse.
  at::Tensor turned_back(const at::Tensor& x, int64_t first = 0) const {
    return turn(x, first, -1.0);
  }

 private:
  at::Tensor turn(const at::Tensor& x, int64_t first, double direction) const;
};

}  // namespace kvlab::data
