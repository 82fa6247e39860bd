#pragma once

#include <ATen/ATen.h>

#include <optional>

#include "base/dtype.h"
#include "quant/codec.h"

namespace kvlab::quant {

/// Typed settings of the uniform codec (contract sections 4.1 and 4.2).
struct UniformSpec {
  enum class Axis { channel, token };
  enum class Grid { float_zero, rounded_zero, symmetric };
  enum class ClipKind { order, range };
  enum class ClipScope { row, group };
  enum class ClipSearch { sort, bisect };
  enum class Rounding { half_even, half_up };

  int64_t bits = 2;
  Axis axis = Axis::token;
  int64_t group = 128;  // as used: at most the head dimension on Axis::token
  Grid grid = Grid::float_zero;
  bool code_offset = false;    // float_zero only: −lo/s is stored in place of lo
  std::optional<double> clip;  // nothing: off
  ClipKind clip_kind = ClipKind::order;
  ClipScope clip_scope = ClipScope::row;
  bool clip_calibrated = false;
  ClipSearch clip_search = ClipSearch::sort;
  bool hold_zero = false;             // the range is widened to hold 0
  std::optional<double> least_range;  // a smaller range becomes this one
  bool unit_range = false;            // rounded_zero: an all-zero group takes the range −1..1
  bool exact_codes =
      false;  // zero and codes follow from the scale before it is rounded to `params`
  Rounding rounding = Rounding::half_even;
  DType params = DType::fp16;
  DType arithmetic = DType::fp32;         // every operation of encoding is rounded to it
  DType decode_arithmetic = DType::fp32;  // and of decoding

  static UniformSpec from(const Settings& codec, int64_t head_dim);
};

/// Scale and zero of every group, already rounded to their type; float32, shaped to broadcast over
/// the grouped view.
struct UniformParams {
  at::Tensor scale;
  at::Tensor zero;  // lo, −lo/s or the integer zero point; undefined on the symmetric grid
  at::Tensor flat;  // bool: groups without a usable range
};

/// [H, n, d] as [H, n/G, G, d] on Axis::channel and [H, n, d/G, G] on Axis::token.
at::Tensor grouped(const at::Tensor& x, const UniformSpec& spec);

/// The dimension of the grouped view that runs within a group.
int64_t group_dim(const UniformSpec& spec);

/// Ascending |x| over the last dimension at index int(ratio·size), kept as a dimension of 1.
at::Tensor order_threshold(const at::Tensor& x, double ratio);

/// The same as OSCAR's fused kernels find it: ⌈log2(size)⌉ halvings of [0, max|x|], the upper end
/// of an interval whose upper end has int(ratio·size) values or more at or below it.
at::Tensor bisected_threshold(const at::Tensor& x, double ratio);

/// The threshold of every element of [H, n, d] by the clip rule, broadcastable to it or
/// (ClipScope::group) to the grouped view; undefined where order clipping is off.
at::Tensor clip_threshold(const at::Tensor& x, const UniformSpec& spec,
                          const at::Tensor& calibrated);

/// hi − lo, or the least range where that is larger.
at::Tensor range_of(const at::Tensor& lo, const at::Tensor& hi, const UniformSpec& spec);

/// Parameters of clipped, grouped values.
UniformParams uniform_params(const at::Tensor& groups, const UniformSpec& spec);

/// Codes as float32, rounded but not clamped; 0-based (symmetric codes are shifted by M).
at::Tensor uniform_codes(const at::Tensor& groups, const UniformParams& params,
                         const UniformSpec& spec);

/// Values of (clamped) codes.
at::Tensor uniform_values(const at::Tensor& codes, const UniformParams& params,
                          const UniformSpec& spec);

/// The largest code: 2^bits − 1, or 2M on the symmetric grid.
double largest_code(const UniformSpec& spec);

std::unique_ptr<Codec> make_uniform(const Settings& codec, int64_t head_dim);

}  // namespace kvlab::quant
