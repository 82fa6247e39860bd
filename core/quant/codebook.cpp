#include "quant/codebook.h"

#include <fmt/format.h>

#include <cmath>
#include <numbers>

#include "base/error.h"
#include "quant/gaussian_levels.h"
#include "quant/packing.h"
#include "quant/parts.h"
#include "quant/rounding.h"
#include "quant/uniform.h"

namespace kvlab::quant {
namespace {

/// The channels of a head that have levels of their own.
struct Block {
  int64_t first = 0, channels = 0;
  int64_t bits = 0;   // of a code
  int64_t group = 0;  // channels that share a norm, at most the block
  std::string levels_text = {};
  at::Tensor levels = {};  // float64 [2^bits], ascending, of unit variance
};

struct CodebookSpec {
  std::vector<Block> blocks;
  bool by_norm = true;           // else by mean and deviation
  bool norm_correction = false;  // decoded groups get the stored norm
  std::optional<double> ratio;   // decoded levels are evenly spaced, their step times this
  at::ScalarType params = at::kHalf;
  UniformSpec clip;  // its clipping alone
  bool sketch = false;
};

bool by_norm(const Settings& codec) { return get_text(codec, "normalize") == "norm"; }
bool is_split(const Settings& codec) { return get_real(codec, "high_share") > 0.0; }

/// Bits of the codes of a block that is stored with `bits` in all.
int64_t level_bits(const Settings& codec, int64_t bits) {
  return needs_sketch(codec) ? bits - 1 : bits;
}

std::vector<Block> blocks_of(const Settings& codec, int64_t head_dim) {
  const auto block = [&](int64_t first, int64_t channels, const std::string& prefix) {
    Block made{first, channels, level_bits(codec, get_int(codec, prefix + "bits"))};
    made.group = is_split(codec) ? channels : std::min(get_int(codec, "group"), channels);
    made.levels_text = get_text(codec, prefix + "levels");
    return made;
  };
  if (!is_split(codec)) return {block(0, head_dim, "")};
  const auto high =
      static_cast<int64_t>(get_real(codec, "high_share") * static_cast<double>(head_dim));
  return {block(0, high, "high_"), block(high, head_dim - high, "")};
}

std::optional<std::string> refuse_codebook(const Settings& side, int64_t head_dim) {
  const Settings codec = below(side, "codec.");
  for (const Block& block : blocks_of(codec, head_dim)) {
    if (block.channels == 0) {
      return fmt::format("a high_share of {} makes no two parts of {} channels",
                         get_real(codec, "high_share"), head_dim);
    }
    if (block.bits < 1) return "a sketch takes one bit: bits must be at least 2";
    if (block.channels % block.group != 0) {
      return fmt::format("a group of {} channels does not divide the {} channels", block.group,
                         block.channels);
    }
    if (block.channels * block.bits % 8 != 0) {
      return fmt::format("{} codes of {} bits do not fill whole bytes", block.channels, block.bits);
    }
    const std::string& text = block.levels_text;
    const auto levels = static_cast<size_t>(int64_t{1} << block.bits);
    if (text != "gaussian" && levels_from(text, block.bits).size() != levels) {
      return fmt::format(
          "levels must be gaussian or {} ascending numbers between commas, found '{}'", levels,
          text);
    }
  }
  if (needs_sketch(codec) && head_dim % 8 != 0) {
    return fmt::format("{} signs do not fill whole bytes", head_dim);
  }
  return std::nullopt;
}

double largest_of(at::ScalarType type) {
  return type == at::kHalf       ? largest(DType::fp16)
         : type == at::kBFloat16 ? largest(DType::bf16)
         : type == at::kFloat    ? largest(DType::fp32)
                                 : std::numeric_limits<double>::max();
}

at::Tensor rounded_to(const at::Tensor& x, at::ScalarType type) {
  return x.clamp(-largest_of(type), largest_of(type)).to(type).to(at::kDouble);
}

class Codebook final : public Codec {
 public:
  explicit Codebook(CodebookSpec spec) : spec_(std::move(spec)) {}

  Encoded encode(const at::Tensor& x, const at::Tensor& shared) const override {
    at::Tensor wide = x.to(at::kDouble);
    const at::Tensor threshold = clip_threshold(x, spec_.clip, {});
    if (threshold.defined()) {
      const at::Tensor limit = threshold.to(at::kDouble);
      wide = at::clamp(wide, limit.neg(), limit);
    }
    std::vector<at::Tensor> codes, params;
    at::Tensor outside = at::zeros({x.size(0)}, at::kLong);
    for (const Block& block : spec_.blocks) {
      const at::Tensor group_params = params_of(in_groups(wide, block), block);
      const at::Tensor found = codes_of(in_groups(wide, block), block);
      codes.push_back(pack(found.to(at::kByte).reshape({x.size(0), x.size(1), -1}), block.bits));
      params.push_back(group_params);
    }
    Encoded encoded;
    encoded.codes = at::cat(codes, -1);
    encoded.params = at::cat(params, 2).to(spec_.params).contiguous();
    encoded.saturated = outside;
    if (!spec_.sketch) return encoded;
    if (!shared.defined()) throw Error("the matrix of a sketch is missing");
    encoded.shared = shared;
    const at::Tensor residual = wide - levels_decoded(encoded);
    const at::Tensor signs = residual.matmul(shared.transpose(-1, -2)).ge(0).to(at::kByte);
    const at::Tensor norms = residual.square().sum(-1, /*keepdim=*/true).sqrt();
    encoded.more = {pack(signs, 1), rounded_to(norms, spec_.params).to(spec_.params)};
    return encoded;
  }

  at::Tensor decode(const Encoded& encoded) const override {
    at::Tensor values = levels_decoded(encoded);
    if (spec_.sketch) {
      const at::Tensor signs = unpack(encoded.more[0], 1).to(at::kDouble).mul_(2.0).sub_(1.0);
      const double factor =
          std::sqrt(std::numbers::pi / 2.0) / std::sqrt(static_cast<double>(values.size(-1)));
      values = values + encoded.more[1].to(at::kDouble) * signs.matmul(encoded.shared) * factor;
    }
    return spec_.params == at::kDouble ? values : values.to(at::kFloat);
  }

  int64_t shared_bytes() const override {
    int64_t bytes = 0;
    for (const Block& block : spec_.blocks) bytes += block.levels.numel() * 4;
    return bytes;
  }

 private:
  /// [H, n, d] to the block's [H, n, groups, G].
  static at::Tensor in_groups(const at::Tensor& x, const Block& block) {
    const at::Tensor part = x.narrow(2, block.first, block.channels);
    return part.reshape({x.size(0), x.size(1), block.channels / block.group, block.group});
  }

  static at::Tensor deviation(const at::Tensor& groups) {
    constexpr double kLeastVariance = 1e-8;  // as OSCAR's code has it
    const at::Tensor variance = (groups - groups.mean(-1, true)).square().mean(-1, true);
    return (variance + kLeastVariance).sqrt();
  }

  /// The nearest levels of unit coordinates; a tie is the lower one.
  at::Tensor codes_of(const at::Tensor& groups, const Block& block) const {
    at::Tensor unit;
    if (spec_.by_norm) {
      const at::Tensor norm = groups.square().sum(-1, true).sqrt();
      unit =
          groups / norm.masked_fill(norm.eq(0), 1.0) * std::sqrt(static_cast<double>(block.group));
    } else {
      unit = (groups - groups.mean(-1, true)) / deviation(groups);
    }
    const int64_t last = block.levels.size(0) - 1;
    const at::Tensor thresholds =
        (block.levels.narrow(0, 0, last) + block.levels.narrow(0, 1, last)) / 2.0;
    return at::searchsorted(thresholds, unit.contiguous());
  }

  /// What is stored of each group, rounded to its type: float64 [H, n, groups, 1 or 2].
  at::Tensor params_of(const at::Tensor& groups, const Block& block) const {
    if (spec_.by_norm) return rounded_to(groups.square().sum(-1, true).sqrt(), spec_.params);
    const at::Tensor mean = groups.mean(-1, true);
    const at::Tensor scale = rounded_to(deviation(groups) * step_of(block), spec_.params);
    if (!spec_.ratio) return at::cat({scale, rounded_to(mean, spec_.params)}, -1);
    const double middle = static_cast<double>(block.levels.size(0) - 1) / 2.0;
    const at::Tensor zero = middle - mean / scale;
    // A group so flat that its zero point leaves the type is one step from it, as on the grids.
    const at::Tensor flat = scale.eq(0).logical_or(zero.abs().gt(largest_of(spec_.params)));
    const at::Tensor code = codes_of(groups, block).narrow(-1, 0, 1).to(at::kDouble);
    const at::Tensor instead = rounded_to(mean.abs().masked_fill(mean.eq(0), 1.0), spec_.params);
    const at::Tensor used = at::where(flat, instead, scale);
    return at::cat({used, rounded_to(at::where(flat, code - mean / instead, zero), spec_.params)},
                   -1);
  }

  /// Evenly spaced levels as far apart as the outer ones say, times the ratio; else 1.
  double step_of(const Block& block) const {
    if (!spec_.ratio) return 1.0;
    const int64_t last = block.levels.size(0) - 1;
    const double span = block.levels[last].item<double>() - block.levels[0].item<double>();
    return span / static_cast<double>(last) * *spec_.ratio;
  }

  /// float64 [H, n, d] without the sketch.
  at::Tensor levels_decoded(const Encoded& encoded) const {
    std::vector<at::Tensor> values;
    int64_t byte = 0, group = 0;
    for (const Block& block : spec_.blocks) {
      const int64_t bytes = block.channels * block.bits / 8;
      const int64_t groups = block.channels / block.group;
      const at::Tensor codes =
          unpack(encoded.codes.narrow(-1, byte, bytes).contiguous(), block.bits);
      const at::Tensor params = encoded.params.narrow(2, group, groups).to(at::kDouble);
      values.push_back(
          block_values(in_groups(codes, Block{0, block.channels, 0, block.group}), params, block)
              .flatten(2));
      byte += bytes;
      group += groups;
    }
    return at::cat(values, -1);
  }

  at::Tensor block_values(const at::Tensor& codes, const at::Tensor& params,
                          const Block& block) const {
    if (spec_.ratio)
      return (codes.to(at::kDouble) - params.narrow(-1, 1, 1)) * params.narrow(-1, 0, 1);
    const at::Tensor unit =
        block.levels.index_select(0, codes.to(at::kLong).flatten()).reshape(codes.sizes());
    const at::Tensor scale = params.narrow(-1, 0, 1);
    if (!spec_.by_norm) return unit * scale + params.narrow(-1, 1, 1);
    if (!spec_.norm_correction) return unit * (scale / std::sqrt(static_cast<double>(block.group)));
    return unit / unit.square().sum(-1, true).sqrt() * scale;
  }

  CodebookSpec spec_;
};

std::vector<Param> codebook_params() {
  using Type = Param::Type;
  std::vector<Param> params = params_like_uniform({"bits", "group", "clip", "clip_search"});
  params.push_back({.key = "normalize",
                    .fallback = "norm",
                    .choices = {"norm", "mean_deviation"},
                    .help = "groups are divided by their norm, or by their deviation after their "
                            "mean is taken off"});
  params.push_back({.key = "levels",
                    .type = Type::text,
                    .fallback = "gaussian",
                    .help = "gaussian: Lloyd–Max levels of N(0, 1); else 2^bits ascending numbers "
                            "between commas, for coordinates of unit variance"});
  params.push_back({.key = "ratio",
                    .type = Type::optional_real,
                    .fallback = "none",
                    .least = 0.0,
                    .help = "decode to evenly spaced levels, (last − first)/(2^bits − 1) apart, "
                            "times this; none: to the levels themselves",
                    .used = [](const Settings& c) { return !by_norm(c); }});
  params.push_back({.key = "norm_correction",
                    .type = Type::boolean,
                    .fallback = false,
                    .help = "give each decoded group the norm that is stored",
                    .used = by_norm});
  params.push_back({.key = "high_share",
                    .type = Type::real,
                    .fallback = 0.0,
                    .least = 0.0,
                    .most = 1.0,
                    .help = "share of the channels, the first ones, that form a group with "
                            "high_bits, the others being a second group with bits; 0: groups of "
                            "`group` channels"});
  params.push_back({.key = "high_bits",
                    .type = Type::integer,
                    .fallback = 3,
                    .least = 1,
                    .most = 8,
                    .help = "bits of the first channels",
                    .used = is_split});
  params.push_back({.key = "high_levels",
                    .type = Type::text,
                    .fallback = "gaussian",
                    .help = "levels of the first channels",
                    .used = is_split});
  params.push_back({.key = "norm_params",
                    .fallback = "fp16",
                    .choices = {"fp16", "bf16", "fp32", "fp64"},
                    .help = "type of what is stored of a group"});
  for (Param& param : params) {
    if (param.key == "group") param.used = [](const Settings& c) { return !is_split(c); };
  }
  return params;
}

}  // namespace

bool needs_sketch(const Settings& codec) { return get_text(codec, "kind") == "sketched_codebook"; }

Part codebook_part() {
  return {.family = "codec",
          .name = "codebook",
          .help = "the nearest of some levels for each normalized coordinate of a token",
          .params = codebook_params(),
          .refuse = refuse_codebook};
}

Part sketched_codebook_part() {
  return {.family = "codec",
          .name = "sketched_codebook",
          .help =
              "a codebook with one bit less, and the signs of the residual under an orthogonal "
              "matrix from the seed",
          .params = codebook_params(),
          .uses_seed = true,
          .refuse = refuse_codebook};
}

std::unique_ptr<Codec> make_codebook(const Settings& codec, int64_t head_dim) {
  CodebookSpec spec;
  spec.blocks = blocks_of(codec, head_dim);
  for (Block& block : spec.blocks) {
    block.levels = at::tensor(levels_from(block.levels_text, block.bits), at::kDouble);
  }
  spec.by_norm = by_norm(codec);
  spec.norm_correction = spec.by_norm && get_bool(codec, "norm_correction");
  const nlohmann::json& ratio = codec.at("ratio");
  if (!spec.by_norm && ratio.is_number()) spec.ratio = ratio.get<double>();
  const std::string params = get_text(codec, "norm_params");
  spec.params = params == "fp64" ? at::kDouble : scalar_type(float_type(codec, "norm_params"));
  spec.clip.clip = clip_ratio(codec);
  spec.clip.clip_search = get_text(codec, "clip_search") == "bisect"
                              ? UniformSpec::ClipSearch::bisect
                              : UniformSpec::ClipSearch::sort;
  spec.sketch = needs_sketch(codec);
  return std::make_unique<Codebook>(std::move(spec));
}

std::unique_ptr<Codec> make_sketched_codebook(const Settings& codec, int64_t head_dim) {
  return make_codebook(codec, head_dim);
}

}  // namespace kvlab::quant
