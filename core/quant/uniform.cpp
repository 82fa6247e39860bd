#include "quant/uniform.h"

#include "base/error.h"
#include "quant/packing.h"
#include "quant/parts.h"
#include "quant/rounding.h"

namespace kvlab::quant {
namespace {

using Spec = UniformSpec;

/// Largest magnitude of a symmetric code.
double symmetric_reach(const Spec& spec) { return static_cast<double>((1 << (spec.bits - 1)) - 1); }

/// The result of an operation in the arithmetic of a type.
at::Tensor in(const at::Tensor& x, DType type) {
  return type == DType::fp32 ? x : round_to(x, type);
}

at::Tensor rounded(const at::Tensor& x, Spec::Rounding rule) {
  return rule == Spec::Rounding::half_up ? (x + 0.5f).floor() : x.round();
}

/// Clips [H, n, d] and groups it. A threshold of a group applies after grouping, any other before.
at::Tensor clipped_groups(const at::Tensor& x, const Spec& spec, const at::Tensor& calibrated) {
  const at::Tensor threshold = clip_threshold(x, spec, calibrated);
  if (!threshold.defined()) return grouped(x, spec);
  if (spec.clip_scope == Spec::ClipScope::group && !spec.clip_calibrated) {
    return at::clamp(grouped(x, spec), threshold.neg(), threshold);
  }
  return grouped(at::clamp(x, threshold.neg(), threshold), spec);
}

class Uniform final : public Codec {
 public:
  explicit Uniform(Spec spec) : spec_(spec) {}

  Encoded encode(const at::Tensor& x, const at::Tensor& threshold) const override {
    const at::Tensor groups = clipped_groups(x, spec_, threshold);
    UniformSpec coding = spec_;
    if (spec_.exact_codes) coding.params = DType::fp32;
    const UniformParams params = uniform_params(groups, coding);
    const at::Tensor unclamped = uniform_codes(groups, params, spec_);
    const at::Tensor codes = unclamped.clamp(0, largest_code(spec_)).nan_to_num_(0.0).to(at::kByte);

    Encoded encoded;
    encoded.codes = pack(codes.reshape(x.sizes()), spec_.bits);
    encoded.saturated = count_saturated(x, unclamped, params);
    std::vector<at::Tensor> stored = {params.scale};
    if (params.zero.defined()) stored.push_back(params.zero);
    encoded.params = round_to(at::stack(stored, -1).squeeze(group_dim(spec_)), spec_.params)
                         .to(scalar_type(spec_.params))
                         .contiguous();
    return encoded;
  }

  at::Tensor decode(const Encoded& encoded) const override {
    const at::Tensor codes = unpack(encoded.codes, spec_.bits).to(at::kFloat);
    const at::Tensor stored = encoded.params.to(at::kFloat);
    UniformParams params;
    params.scale = stored.select(-1, 0).unsqueeze(group_dim(spec_));
    if (stored.size(-1) > 1) params.zero = stored.select(-1, 1).unsqueeze(group_dim(spec_));
    return uniform_values(grouped(codes, spec_), params, spec_).reshape(codes.sizes());
  }

 private:
  at::Tensor count_saturated(const at::Tensor& x, const at::Tensor& unclamped,
                             const UniformParams& params) const {
    at::Tensor codes = unclamped;
    if (spec_.clip) codes = uniform_codes(grouped(x, spec_), params, spec_);
    at::Tensor outside = codes.lt(0).logical_or_(codes.gt(largest_code(spec_)));
    if (spec_.grid == Spec::Grid::float_zero) outside.logical_and_(params.flat.logical_not());
    return outside.sum({1, 2, 3}, false, at::kLong);
  }

  Spec spec_;
};

}  // namespace

UniformSpec UniformSpec::from(const Settings& codec, int64_t head_dim) {
  UniformSpec spec;
  const auto is = [&](const char* key, const char* value) { return get_text(codec, key) == value; };
  spec.bits = get_int(codec, "bits");
  spec.axis = is("axis", "channel") ? Axis::channel : Axis::token;
  spec.group = effective_group(codec, head_dim);
  spec.grid = is("grid", "float_zero")     ? Grid::float_zero
              : is("grid", "rounded_zero") ? Grid::rounded_zero
                                           : Grid::symmetric;
  spec.code_offset = spec.grid == Grid::float_zero && is("zero", "code_offset");
  spec.clip = clip_ratio(codec);
  spec.clip_kind = is("clip_kind", "range") ? ClipKind::range : ClipKind::order;
  spec.clip_scope = is("clip_scope", "group") ? ClipScope::group : ClipScope::row;
  spec.clip_calibrated = spec.clip && clip_is_calibrated(codec);
  spec.clip_search = is("clip_search", "bisect") ? ClipSearch::bisect : ClipSearch::sort;
  spec.hold_zero = get_bool(codec, "hold_zero");
  const nlohmann::json& least = codec.at("least_range");
  if (least.is_number()) spec.least_range = least.get<double>();
  spec.unit_range = spec.grid == Grid::rounded_zero && is("zero_group", "unit_range");
  spec.exact_codes = is("codes_from", "exact");
  spec.rounding = is("rounding", "half_up") ? Rounding::half_up : Rounding::half_even;
  spec.params = float_type(codec, "params");
  spec.arithmetic = float_type(codec, "arithmetic");
  spec.decode_arithmetic = float_type(codec, "decode_arithmetic");
  return spec;
}

double largest_code(const UniformSpec& spec) {
  if (spec.grid == Spec::Grid::symmetric) return 2.0 * symmetric_reach(spec);
  return static_cast<double>((1 << spec.bits) - 1);
}

int64_t group_dim(const UniformSpec& spec) { return spec.axis == Spec::Axis::channel ? 2 : 3; }

at::Tensor range_of(const at::Tensor& lo, const at::Tensor& hi, const UniformSpec& spec) {
  at::Tensor spread = in(hi - lo, spec.arithmetic);
  if (!spec.least_range) return spread;
  const at::Tensor least = at::full({}, *spec.least_range, spread.options());
  return at::maximum(spread, in(least, spec.arithmetic));
}

at::Tensor grouped(const at::Tensor& x, const UniformSpec& spec) {
  const int64_t heads = x.size(0);
  const int64_t n = x.size(1);
  const int64_t d = x.size(2);
  if (spec.axis == Spec::Axis::channel) return x.reshape({heads, n / spec.group, spec.group, d});
  return x.reshape({heads, n, d / spec.group, spec.group});
}

at::Tensor order_threshold(const at::Tensor& x, double ratio) {
  const int64_t size = x.size(-1);
  const auto index = static_cast<int64_t>(ratio * static_cast<double>(size));
  return std::get<0>(at::kthvalue(x.detach().abs(), index + 1, -1, /*keepdim=*/true));
}

at::Tensor bisected_threshold(const at::Tensor& x, double ratio) {
  const int64_t size = x.size(-1);
  const auto index = static_cast<int64_t>(ratio * static_cast<double>(size));
  const at::Tensor magnitude = x.detach().abs();
  at::Tensor high = magnitude.amax(-1, /*keepdim=*/true);
  at::Tensor low = at::zeros_like(high);
  for (int64_t step = 1; step < size; step *= 2) {
    const at::Tensor middle = (low + high) * 0.5;
    const at::Tensor enough = magnitude.le(middle).sum(-1, /*keepdim=*/true).ge(index);
    high = at::where(enough, middle, high);
    low = at::where(enough, low, middle);
  }
  return high;
}

at::Tensor clip_threshold(const at::Tensor& x, const UniformSpec& spec,
                          const at::Tensor& calibrated) {
  if (!spec.clip || spec.clip_kind != Spec::ClipKind::order) return {};
  if (spec.clip_calibrated) {
    if (!calibrated.defined()) throw Error("a calibrated clip threshold is missing");
    return calibrated.to(at::kFloat).reshape({-1, 1, 1});
  }
  const auto threshold =
      spec.clip_search == Spec::ClipSearch::sort ? order_threshold : bisected_threshold;
  if (spec.clip_scope == Spec::ClipScope::row) return threshold(x, *spec.clip);
  const int64_t dim = group_dim(spec);
  const at::Tensor last = grouped(x, spec).transpose(dim, -1);
  return threshold(last, *spec.clip).transpose(dim, -1);
}

UniformParams uniform_params(const at::Tensor& groups, const UniformSpec& spec) {
  const int64_t dim = group_dim(spec);
  const double limit = largest(spec.params);
  const auto range = groups.aminmax(dim, /*keepdim=*/true);
  const DType type = spec.arithmetic;
  at::Tensor lo = std::get<0>(range);
  at::Tensor hi = std::get<1>(range);
  if (spec.hold_zero) {
    lo = lo.clamp_max(0.0);
    hi = hi.clamp_min(0.0);
  }
  if (spec.clip && spec.clip_kind == Spec::ClipKind::range) {
    const auto ratio = static_cast<float>(*spec.clip);
    lo = in(lo * ratio, type);
    hi = in(hi * ratio, type);
  }
  if (spec.unit_range) {
    const at::Tensor zero = lo.eq(0).logical_and_(hi.eq(0));
    lo = lo.masked_fill(zero, -1.0);
    hi = hi.masked_fill(zero, 1.0);
  }
  lo = lo.clamp(-limit, limit);
  hi = hi.clamp(-limit, limit);

  UniformParams params;
  const at::Tensor constant = hi.eq(lo);
  if (spec.grid == Spec::Grid::symmetric) {
    const at::Tensor reach = at::maximum(lo.neg(), hi);
    params.scale = round_to(in(reach / symmetric_reach(spec), type), spec.params);
    params.flat = params.scale.eq(0);
    params.scale = at::where(params.flat, at::ones_like(params.scale), params.scale);
    return params;
  }

  const auto steps = static_cast<float>((1 << spec.bits) - 1);
  const at::Tensor spread = range_of(lo, hi, spec);
  const at::Tensor scale = round_to(in(spread / steps, type), spec.params);
  params.flat = spec.least_range ? scale.eq(0) : constant.logical_or(scale.eq(0));
  const at::Tensor stored_lo = round_to(lo, spec.params);
  if (spec.grid == Spec::Grid::float_zero && !spec.code_offset) {
    params.scale = scale;
    params.zero = stored_lo;
    return params;
  }
  // A flat group stores its value as one step from zero: s = |lo|, zero point −1 or 1.
  at::Tensor flat_scale = stored_lo.abs();
  flat_scale = at::where(flat_scale.eq(0), at::ones_like(flat_scale), flat_scale);
  params.scale = at::where(params.flat, flat_scale, scale);
  const at::Tensor origin = in(at::where(params.flat, stored_lo, lo).neg() / params.scale, type);
  const bool integer = spec.grid == Spec::Grid::rounded_zero;
  params.zero = round_to(integer ? origin.round() : origin, spec.params);
  return params;
}

at::Tensor uniform_codes(const at::Tensor& groups, const UniformParams& params,
                         const UniformSpec& spec) {
  const DType type = spec.arithmetic;
  switch (spec.grid) {
    case Spec::Grid::symmetric:
      return rounded(in(groups / params.scale, type), spec.rounding) + symmetric_reach(spec);
    case Spec::Grid::rounded_zero:
      return in(rounded(in(groups / params.scale, type), spec.rounding) + params.zero, type);
    case Spec::Grid::float_zero:
      break;
  }
  const at::Tensor divisor = at::where(params.flat, at::ones_like(params.scale), params.scale);
  const at::Tensor place = spec.code_offset ? in(in(groups / divisor, type) + params.zero, type)
                                            : in(in(groups - params.zero, type) / divisor, type);
  return rounded(place, spec.rounding).masked_fill(params.flat, 0.0);
}

at::Tensor uniform_values(const at::Tensor& codes, const UniformParams& params,
                          const UniformSpec& spec) {
  const DType type = spec.decode_arithmetic;
  if (spec.grid == Spec::Grid::symmetric) {
    return in((codes - symmetric_reach(spec)) * params.scale, type);
  }
  if (spec.grid == Spec::Grid::rounded_zero || spec.code_offset) {
    return in(in(codes - params.zero, type) * params.scale, type);
  }
  return in(in(codes * params.scale, type) + params.zero, type);
}

std::unique_ptr<Codec> make_uniform(const Settings& codec, int64_t head_dim) {
  return std::make_unique<Uniform>(UniformSpec::from(codec, head_dim));
}

}  // namespace kvlab::quant
