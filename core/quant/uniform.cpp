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
    const UniformParams params = uniform_params(groups, spec_);
    const at::Tensor unclamped = uniform_codes(groups, params, spec_);
    const at::Tensor codes = unclamped.clamp(0, largest_code(spec_)).nan_to_num_(0.0).to(at::kByte);

    Encoded encoded;
    encoded.codes = pack(codes.reshape(x.sizes()), spec_.bits);
    encoded.saturated = count_saturated(x, unclamped, params);
    std::vector<at::Tensor> stored = {params.scale};
    if (params.zero.defined()) stored.push_back(params.zero);
    encoded.params =
        at::stack(stored, -1).squeeze(group_dim(spec_)).to(scalar_type(spec_.params)).contiguous();
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
  spec.rounding = is("rounding", "half_up") ? Rounding::half_up : Rounding::half_even;
  spec.params = is("params", "fp32")   ? DType::fp32
                : is("params", "fp16") ? DType::fp16
                                       : DType::bf16;
  return spec;
}

double largest_code(const UniformSpec& spec) {
  if (spec.grid == Spec::Grid::symmetric) return 2.0 * symmetric_reach(spec);
  return static_cast<double>((1 << spec.bits) - 1);
}

int64_t group_dim(const UniformSpec& spec) { return spec.axis == Spec::Axis::channel ? 2 : 3; }

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

at::Tensor clip_threshold(const at::Tensor& x, const UniformSpec& spec,
                          const at::Tensor& calibrated) {
  if (!spec.clip || spec.clip_kind != Spec::ClipKind::order) return {};
  if (spec.clip_calibrated) {
    if (!calibrated.defined()) throw Error("a calibrated clip threshold is missing");
    return calibrated.to(at::kFloat).reshape({-1, 1, 1});
  }
  if (spec.clip_scope == Spec::ClipScope::row) return order_threshold(x, *spec.clip);
  const int64_t dim = group_dim(spec);
  const at::Tensor last = grouped(x, spec).transpose(dim, -1);
  return order_threshold(last, *spec.clip).transpose(dim, -1);
}

UniformParams uniform_params(const at::Tensor& groups, const UniformSpec& spec) {
  const int64_t dim = group_dim(spec);
  const double limit = largest(spec.params);
  const auto range = groups.aminmax(dim, /*keepdim=*/true);
  at::Tensor lo = std::get<0>(range);
  at::Tensor hi = std::get<1>(range);
  if (spec.clip && spec.clip_kind == Spec::ClipKind::range) {
    const auto ratio = static_cast<float>(*spec.clip);
    lo = lo * ratio;
    hi = hi * ratio;
  }
  lo = lo.clamp(-limit, limit);
  hi = hi.clamp(-limit, limit);

  UniformParams params;
  const at::Tensor constant = hi.eq(lo);
  if (spec.grid == Spec::Grid::symmetric) {
    const at::Tensor reach = at::maximum(lo.neg(), hi);
    params.scale = round_to(reach / symmetric_reach(spec), spec.params);
    params.flat = params.scale.eq(0);
    params.scale = at::where(params.flat, at::ones_like(params.scale), params.scale);
    return params;
  }

  const auto steps = static_cast<float>((1 << spec.bits) - 1);
  const at::Tensor scale = round_to((hi - lo) / steps, spec.params);
  params.flat = constant.logical_or(scale.eq(0));
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
  const at::Tensor origin = at::where(params.flat, stored_lo, lo).neg() / params.scale;
  const bool integer = spec.grid == Spec::Grid::rounded_zero;
  params.zero = round_to(integer ? origin.round() : origin, spec.params);
  return params;
}

at::Tensor uniform_codes(const at::Tensor& groups, const UniformParams& params,
                         const UniformSpec& spec) {
  switch (spec.grid) {
    case Spec::Grid::symmetric:
      return rounded(groups / params.scale, spec.rounding) + symmetric_reach(spec);
    case Spec::Grid::rounded_zero:
      return rounded(groups / params.scale, spec.rounding) + params.zero;
    case Spec::Grid::float_zero:
      break;
  }
  const at::Tensor divisor = at::where(params.flat, at::ones_like(params.scale), params.scale);
  const at::Tensor place =
      spec.code_offset ? groups / divisor + params.zero : (groups - params.zero) / divisor;
  return rounded(place, spec.rounding).masked_fill(params.flat, 0.0);
}

at::Tensor uniform_values(const at::Tensor& codes, const UniformParams& params,
                          const UniformSpec& spec) {
  switch (spec.grid) {
    case Spec::Grid::symmetric:
      return (codes - symmetric_reach(spec)) * params.scale;
    case Spec::Grid::rounded_zero:
      return (codes - params.zero) * params.scale;
    case Spec::Grid::float_zero:
      break;
  }
  if (spec.code_offset) return (codes - params.zero) * params.scale;
  return codes * params.scale + params.zero;
}

std::unique_ptr<Codec> make_uniform(const Settings& codec, int64_t head_dim) {
  return std::make_unique<Uniform>(UniformSpec::from(codec, head_dim));
}

}  // namespace kvlab::quant
