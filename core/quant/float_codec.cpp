#include "quant/float_codec.h"

#include <fmt/format.h>

#include <cmath>

#include "quant/packing.h"
#include "quant/parts.h"
#include "quant/rounding.h"

namespace kvlab::quant {
namespace {

enum class Format { e4m3, e5m2, e2m1 };
enum class Scale { none, e8m0, e4m3, fp16, fp32 };

constexpr int64_t kScaleBias = 127;  // of e8m0

double most_of(Format format) {
  return format == Format::e4m3 ? 448.0 : format == Format::e5m2 ? 57344.0 : 6.0;
}

/// The exponent of the largest value: what an e8m0 scale leaves to the codes.
int64_t exponent_of(Format format) {
  return format == Format::e4m3 ? 8 : format == Format::e5m2 ? 15 : 2;
}

at::ScalarType eight_bits(Format format) {
  return format == Format::e5m2 ? at::kFloat8_e5m2 : at::kFloat8_e4m3fn;
}

/// The eight magnitudes of e2m1.
at::Tensor magnitudes() { return at::tensor({0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f}); }

/// Codes of e2m1: the sign above the place among the magnitudes. A tie is the even place.
at::Tensor e2m1_codes(const at::Tensor& x) {
  const at::Tensor levels = magnitudes();
  const at::Tensor thresholds = (levels.narrow(0, 0, 7) + levels.narrow(0, 1, 7)) / 2.0;
  const at::Tensor size = x.abs().contiguous();
  const at::Tensor low = at::searchsorted(thresholds, size);  // ties low
  const at::Tensor high = at::searchsorted(thresholds, size, false, /*right=*/true);
  const at::Tensor place = at::where(low.bitwise_and(1).eq(0), low, high);
  return place.add(x.signbit().to(at::kLong), 8).to(at::kByte);
}

at::Tensor e2m1_values(const at::Tensor& codes) {
  const at::Tensor place = codes.bitwise_and(7).to(at::kLong);
  const at::Tensor size = magnitudes().index_select(0, place.flatten()).reshape(codes.sizes());
  return at::where(codes.ge(8), size.neg(), size);
}

struct FloatSpec {
  Format format = Format::e4m3;
  Scale scale = Scale::none;
  int64_t group = 32;
};

/// A scale as it is stored, and its value.
struct Scales {
  at::Tensor stored, value;
};

Scales scales_of(const at::Tensor& largest_of_group, const FloatSpec& spec) {
  if (spec.scale == Scale::e8m0) {
    // 2^(⌊log2 max|x|⌋ − emax), the rule of the specification; a group of zeros has 1.
    const at::Tensor zero = largest_of_group.eq(0);
    const at::Tensor exponent =
        std::get<1>(at::frexp(largest_of_group)).to(at::kLong) - 1 - exponent_of(spec.format);
    const at::Tensor held = exponent.clamp(-kScaleBias, kScaleBias).masked_fill(zero, 0);
    return {(held + kScaleBias).to(at::kByte), held.to(at::kDouble).exp2().to(at::kFloat)};
  }
  const at::Tensor exact = largest_of_group / most_of(spec.format);
  at::Tensor stored;
  if (spec.scale == Scale::e4m3) {
    stored = exact.clamp_max(most_of(Format::e4m3)).to(at::kFloat8_e4m3fn);
  } else {
    stored = round_to(exact, spec.scale == Scale::fp16 ? DType::fp16 : DType::fp32)
                 .to(spec.scale == Scale::fp16 ? at::kHalf : at::kFloat);
  }
  // A group whose scale is 0 holds nothing but what rounds to 0.
  return {stored, stored.to(at::kFloat)};
}

class Float final : public Codec {
 public:
  explicit Float(FloatSpec spec) : spec_(spec) {}

  Encoded encode(const at::Tensor& x, const at::Tensor&) const override {
    const int64_t heads = x.size(0), n = x.size(1), d = x.size(2);
    const at::Tensor groups = x.reshape({heads, n, d / spec_.group, spec_.group});
    Encoded encoded;
    at::Tensor scaled = groups;
    if (spec_.scale == Scale::none) {
      encoded.params = at::empty({heads, n, 0}, at::kByte);
    } else {
      const Scales scales = scales_of(groups.abs().amax(-1, /*keepdim=*/true), spec_);
      encoded.params = scales.stored.squeeze(-1).contiguous();
      scaled = groups / scales.value.masked_fill(scales.value.eq(0), 1.0);
      scaled = scaled.masked_fill(scales.value.eq(0), 0.0);
    }
    const double most = most_of(spec_.format);
    encoded.saturated = scaled.abs().gt(most).sum({1, 2, 3}, false, at::kLong);
    const at::Tensor held = scaled.clamp(-most, most).reshape(x.sizes());
    encoded.codes = spec_.format == Format::e2m1
                        ? pack(e2m1_codes(held), 4)
                        : held.to(eight_bits(spec_.format)).view(at::kByte);
    return encoded;
  }

  at::Tensor decode(const Encoded& encoded) const override {
    at::Tensor values = spec_.format == Format::e2m1
                            ? e2m1_values(unpack(encoded.codes, 4))
                            : encoded.codes.view(eight_bits(spec_.format)).to(at::kFloat);
    if (spec_.scale == Scale::none) return values;
    const at::Tensor scale =
        spec_.scale == Scale::e8m0
            ? (encoded.params.to(at::kDouble) - static_cast<double>(kScaleBias))
                  .exp2()
                  .to(at::kFloat)
            : encoded.params.to(at::kFloat);
    const int64_t groups = scale.size(-1);
    return (values.reshape({values.size(0), values.size(1), groups, spec_.group}) *
            scale.unsqueeze(-1))
        .reshape(values.sizes());
  }

 private:
  FloatSpec spec_;
};

std::optional<std::string> refuse_float(const Settings& side, int64_t head_dim) {
  const Settings codec = below(side, "codec.");
  const int64_t group = std::min(get_int(codec, "group"), head_dim);
  if (get_text(codec, "scale") != "none" && head_dim % group != 0) {
    return fmt::format("a group of {} channels does not divide the head dimension {}", group,
                       head_dim);
  }
  if (get_text(codec, "format") == "e2m1" && head_dim % 2 != 0) {
    return fmt::format("{} codes of 4 bits do not fill whole bytes", head_dim);
  }
  return std::nullopt;
}

}  // namespace

Part float_part() {
  std::vector<Param> params = {
      {.key = "format",
       .fallback = "e4m3",
       .choices = {"e4m3", "e5m2", "e2m1"},
       .help = "the codes' exponent and mantissa bits: 8, 8 and 4 bits with the sign"},
      {.key = "scale",
       .fallback = "none",
       .choices = {"none", "e8m0", "e4m3", "fp16", "fp32"},
       .help = "type of a group's scale; e8m0 is a power of two, the others max|x| over the "
               "format's largest value"}};
  for (Param& param : params_like_uniform({"group"})) {
    param.used = [](const Settings& c) { return get_text(c, "scale") != "none"; };
    params.push_back(std::move(param));
  }
  return {.family = "codec",
          .name = "float",
          .help = "floating-point codes, with a scale a group of channels of one token or without",
          .params = std::move(params),
          .refuse = refuse_float};
}

std::unique_ptr<Codec> make_float(const Settings& codec, int64_t head_dim) {
  const std::string format = get_text(codec, "format");
  const std::string scale = get_text(codec, "scale");
  FloatSpec spec;
  spec.format = format == "e4m3" ? Format::e4m3 : format == "e5m2" ? Format::e5m2 : Format::e2m1;
  spec.scale = scale == "none"   ? Scale::none
               : scale == "e8m0" ? Scale::e8m0
               : scale == "e4m3" ? Scale::e4m3
               : scale == "fp16" ? Scale::fp16
                                 : Scale::fp32;
  spec.group = spec.scale == Scale::none ? head_dim : std::min(get_int(codec, "group"), head_dim);
  return std::make_unique<Float>(spec);
}

}  // namespace kvlab::quant
