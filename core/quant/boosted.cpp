#include "quant/boosted.h"

#include <fmt/format.h>

#include "quant/packing.h"
#include "quant/parts.h"
#include "quant/rounding.h"
#include "quant/uniform.h"

namespace kvlab::quant {
namespace {

/// Channels of a head that are promoted.
int64_t promoted_channels(const Settings& codec, int64_t head_dim) {
  return static_cast<int64_t>(get_real(codec, "boost") * static_cast<double>(head_dim));
}

std::optional<std::string> refuse_boosted(const Settings& side, int64_t head_dim) {
  const Settings codec = below(side, "codec.");
  const int64_t bits = get_int(codec, "bits");
  const int64_t boosted = get_int(codec, "boost_bits");
  const int64_t tokens = get_int(codec, "boost_tokens");
  if (get_text(codec, "axis") != "channel") {
    return "boosted channels need groups of tokens: axis channel";
  }
  if (boosted <= bits) {
    return fmt::format("boost_bits {} is no more than bits {}", boosted, bits);
  }
  if (tokens % get_int(codec, "group") != 0) {
    return fmt::format("boost_tokens {} is no multiple of the group of {} tokens", tokens,
                       get_int(codec, "group"));
  }
  const int64_t plane = promoted_channels(codec, head_dim) * tokens * (boosted - bits);
  if (head_dim * bits % 8 != 0 || plane % 8 != 0) {
    return fmt::format(
        "{} codes of {} bits, {} of them with {} bits over {} tokens, do not fill "
        "whole bytes",
        head_dim, bits, promoted_channels(codec, head_dim), boosted, tokens);
  }
  return std::nullopt;
}

/// The same spec at another number of bits.
UniformSpec at_bits(UniformSpec spec, int64_t bits) {
  spec.bits = bits;
  return spec;
}

class Boosted final : public Codec {
 public:
  Boosted(const UniformSpec& spec, int64_t boost_bits, int64_t page, int64_t promoted)
      : spec_(spec), boosted_(at_bits(spec, boost_bits)), page_(page), promoted_(promoted) {}

  Encoded encode(const at::Tensor& x, const at::Tensor&) const override {
    const int64_t heads = x.size(0), n = x.size(1), d = x.size(2);
    // [H, pages, k]: the channels of largest mean |x| of each page.
    const at::Tensor size = x.reshape({heads, n / page_, page_, d}).abs().mean(2);
    const at::Tensor channels =
        size.argsort(/*stable=*/true, -1, /*descending=*/true).narrow(-1, 0, promoted_);
    const at::Tensor mask = mask_of(channels, d);

    const at::Tensor groups = grouped(x, spec_);
    const UniformParams dense = uniform_params(groups, spec_);
    const UniformParams fine = uniform_params(groups, boosted_);
    UniformParams params = dense;
    params.scale = at::where(mask, fine.scale, dense.scale);
    params.flat = at::where(mask, fine.flat, dense.flat);
    const at::Tensor top =
        at::full({}, largest_code(spec_), x.options())
            .where(mask.logical_not(), at::full({}, largest_code(boosted_), x.options()));
    const at::Tensor unclamped = uniform_codes(groups, params, spec_);
    const at::Tensor codes = unclamped.clamp_min(0.0).minimum(top).nan_to_num_(0.0).to(at::kByte);

    const at::Tensor rows = codes.reshape(x.sizes());
    const auto low = static_cast<int64_t>(largest_code(spec_));
    Encoded encoded;
    encoded.codes = pack(rows.bitwise_and(low), spec_.bits);
    const at::Tensor high =
        rows.bitwise_right_shift(spec_.bits).reshape({heads, n / page_, page_, d});
    const at::Tensor plane = high.gather(3, over_page(channels)).flatten(2);
    encoded.more = {pack(plane, boosted_.bits - spec_.bits), channels.to(index_type(d - 1))};
    encoded.params = at::stack({params.scale, params.zero}, -1)
                         .squeeze(group_dim(spec_))
                         .to(scalar_type(spec_.params))
                         .contiguous();
    encoded.saturated = unclamped.lt(0)
                            .logical_or_(unclamped.gt(top))
                            .logical_and_(params.flat.logical_not())
                            .sum({1, 2, 3}, false, at::kLong);
    return encoded;
  }

  at::Tensor decode(const Encoded& encoded) const override {
    const at::Tensor low = unpack(encoded.codes, spec_.bits);
    const int64_t heads = low.size(0), n = low.size(1), d = low.size(2);
    const at::Tensor channels = encoded.more[1].to(at::kLong);
    const at::Tensor plane = unpack(encoded.more[0], boosted_.bits - spec_.bits)
                                 .reshape({heads, n / page_, page_, promoted_});
    at::Tensor high = at::zeros({heads, n / page_, page_, d}, low.options());
    high = high.scatter(3, over_page(channels), plane).bitwise_left_shift(spec_.bits);
    const at::Tensor codes = low.bitwise_or(high.reshape(low.sizes())).to(at::kFloat);
    const at::Tensor stored = encoded.params.to(at::kFloat);
    UniformParams params;
    params.scale = stored.select(-1, 0).unsqueeze(group_dim(spec_));
    params.zero = stored.select(-1, 1).unsqueeze(group_dim(spec_));
    return uniform_values(grouped(codes, spec_), params, spec_).reshape(codes.sizes());
  }

 private:
  /// Which channels of which groups are promoted: bool [H, n/G, 1, d].
  at::Tensor mask_of(const at::Tensor& channels, int64_t d) const {
    at::Tensor mask =
        at::zeros({channels.size(0), channels.size(1), d}, channels.options().dtype(at::kBool));
    mask.scatter_(2, channels, true);
    return mask.repeat_interleave(page_ / spec_.group, 1).unsqueeze(2);
  }

  /// [H, pages, k] as an index of every token of a page: [H, pages, page, k].
  at::Tensor over_page(const at::Tensor& channels) const {
    return channels.unsqueeze(2).expand({-1, -1, page_, -1});
  }

  UniformSpec spec_, boosted_;
  int64_t page_, promoted_;
};

}  // namespace

Part boosted_part() {
  using Type = Param::Type;
  std::vector<Param> params =
      params_like_uniform({"bits", "axis", "group", "least_range", "rounding", "params",
                           "arithmetic", "decode_arithmetic"});
  params.push_back({.key = "boost",
                    .type = Type::real,
                    .fallback = 0.125,
                    .least = 0.0,
                    .most = 1.0,
                    .help = "share of the channels that get boost_bits"});
  params.push_back({.key = "boost_bits",
                    .type = Type::integer,
                    .fallback = 4,
                    .least = 2,
                    .most = 8,
                    .help = "bits of a promoted channel's codes, on the same range"});
  params.push_back({.key = "boost_tokens",
                    .type = Type::integer,
                    .fallback = 128,
                    .least = 1,
                    .most = 1 << 20,
                    .help = "tokens over which channels are ranked by their mean |x|"});
  return {.family = "codec",
          .name = "boosted",
          .help = "uniform groups of tokens in which the largest channels have more bits",
          .params = std::move(params),
          .refuse = refuse_boosted};
}

std::unique_ptr<Codec> make_boosted(const Settings& codec, int64_t head_dim) {
  UniformSpec spec;
  spec.bits = get_int(codec, "bits");
  spec.axis = UniformSpec::Axis::channel;
  spec.group = get_int(codec, "group");
  const nlohmann::json& least = codec.at("least_range");
  if (least.is_number()) spec.least_range = least.get<double>();
  spec.rounding = get_text(codec, "rounding") == "half_up" ? UniformSpec::Rounding::half_up
                                                           : UniformSpec::Rounding::half_even;
  spec.params = float_type(codec, "params");
  spec.arithmetic = float_type(codec, "arithmetic");
  spec.decode_arithmetic = float_type(codec, "decode_arithmetic");
  return std::make_unique<Boosted>(spec, get_int(codec, "boost_bits"),
                                   get_int(codec, "boost_tokens"),
                                   promoted_channels(codec, head_dim));
}

}  // namespace kvlab::quant
