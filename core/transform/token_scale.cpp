#include "transform/token_scale.h"

#include <algorithm>
#include <array>
#include <string>

#include "quant/rounding.h"

namespace kvlab::transform {
namespace {

using Params = TokenScale::Params;

constexpr double kLargestE4m3 = 448.0;
constexpr double kStepsAnOctave = 16.0;
constexpr double kMostCode = 127.0;

/// float32 in, float32 out.
at::Tensor rounded(const at::Tensor& x, Params params) {
  switch (params) {
    case Params::fp32:
      return quant::round_to(x, DType::fp32);
    case Params::fp16:
      return quant::round_to(x, DType::fp16);
    case Params::bf16:
      return quant::round_to(x, DType::bf16);
    case Params::fp8_e4m3:
      return x.clamp_max(kLargestE4m3).to(at::kFloat8_e4m3fn).to(at::kFloat);
    case Params::int8:
      // In float64, so that a stored number rounds to itself.
      return at::exp2(at::log2(x.to(at::kDouble))
                          .mul_(kStepsAnOctave)
                          .round_()
                          .clamp_(-kMostCode, kMostCode)
                          .div_(kStepsAnOctave))
          .to(at::kFloat);
    case Params::adaptive:
      break;
  }
  return x;
}

/// Where `adaptive` keeps 16 bits: the norm as 8 bits would hold it is below the threshold. Takes
/// numbers in either type, so that what is stored tells its own size.
at::Tensor is_fine(const at::Tensor& number, const TokenScale& scale) {
  const at::Tensor coarse = rounded(number, Params::fp8_e4m3);
  return (scale.inverse ? coarse.reciprocal() : coarse).lt(scale.threshold);
}

}  // namespace

TokenScale TokenScale::from(const Settings& side) {
  TokenScale scale;
  const std::string kind = get_text(side, "token_scale");
  if (kind == "none") return scale;
  static constexpr std::array kinds = {"none",          "l2_heads",  "l2_head",       "max_head",
                                       "mean_abs_head", "max_heads", "mean_abs_heads"};
  scale.kind = static_cast<Kind>(std::find(kinds.begin(), kinds.end(), kind) - kinds.begin());
  static constexpr std::array names = {"fp32", "fp16", "bf16", "fp8_e4m3", "int8", "adaptive"};
  const auto* const found =
      std::find(names.begin(), names.end(), get_text(side, "token_scale_params"));
  scale.params = static_cast<Params>(found - names.begin());
  scale.rotate_first = get_text(side, "order") == "rotate_scale";
  scale.inverse = get_text(side, "norm_op") == "rsqrt" && kind.starts_with("l2");
  scale.threshold = get_real(side, "token_scale_threshold");
  return scale;
}

at::Tensor TokenScale::stored(const at::Tensor& measured) const {
  const at::Tensor zero = measured.eq(0);
  const at::Tensor number =
      (inverse ? measured.reciprocal() : measured).masked_fill(zero, 1.0).to(at::kFloat);
  at::Tensor result;
  if (params == Params::adaptive) {
    const at::Tensor fine = rounded(number, Params::fp16);
    result = at::where(is_fine(fine, *this), fine, rounded(fine, Params::fp8_e4m3));
  } else {
    result = rounded(number, params);
  }
  result = result.to(at::kDouble);
  return result.masked_fill(result.eq(0), 1.0);
}

at::Tensor TokenScale::bits(const at::Tensor& stored) const {
  if (params == Params::adaptive) {
    return is_fine(stored.to(at::kFloat), *this).to(at::kLong) * 8 + 9;
  }
  const int64_t each = params == Params::fp32                             ? 32
                       : params == Params::fp16 || params == Params::bf16 ? 16
                                                                          : 8;
  return at::full_like(stored, each, at::kLong);
}

}  // namespace kvlab::transform
