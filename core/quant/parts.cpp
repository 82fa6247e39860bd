#include "quant/parts.h"

#include <fmt/format.h>

#include "quant/boosted.h"
#include "quant/codebook.h"
#include "quant/float_codec.h"
#include "quant/sparse_dense.h"
#include "quant/vector_codebook.h"

namespace kvlab::quant {
namespace {

bool clips(const Settings& codec) { return clip_ratio(codec).has_value(); }

bool clips_by_order(const Settings& codec) {
  return clips(codec) && get_text(codec, "clip_kind") == "order";
}

bool is_per_token(const Settings& codec) { return get_text(codec, "axis") == "token"; }

bool is_whole_token(const Settings& codec) {
  return is_per_token(codec) && get_text(codec, "row") == "token";
}

bool has_zero(const Settings& codec) { return get_text(codec, "grid") != "symmetric"; }

std::optional<std::string> refuse_uniform(const Settings& side, int64_t head_dim) {
  const Settings codec = below(side, "codec.");
  const int64_t group = effective_group(codec, head_dim);
  const bool per_token = is_per_token(codec);
  if (is_whole_token(codec) && clip_is_calibrated(codec)) {
    return "clip_source calibrated has a threshold for each KV head, row token a row of all heads";
  }
  if (per_token && !is_whole_token(codec) && head_dim % group != 0) {
    return fmt::format("a group of {} channels does not divide the head dimension {}", group,
                       head_dim);
  }
  if (head_dim * get_int(codec, "bits") % 8 != 0) {
    return fmt::format("{} codes of {} bits do not fill whole bytes", head_dim,
                       get_int(codec, "bits"));
  }
  if (get_text(codec, "grid") == "symmetric" && get_int(codec, "bits") < 2) {
    return "a symmetric grid of 1 bit has no level but zero";
  }
  const bool half_way = get_text(codec, "grid") == "rounded_zero" && clips_by_order(codec) &&
                        !clip_is_calibrated(codec) && get_text(codec, "params") == "fp32" &&
                        (per_token || get_text(codec, "clip_scope") == "group");
  if (half_way) {
    return "order clipping makes groups symmetric, so that −lo/s of a rounded_zero grid is exactly "
           "1.5 and its rounding "
           "a coin toss in fp32: use params fp16 or bf16, clip_kind range, or grid float_zero";
  }
  return std::nullopt;
}

}  // namespace

std::optional<double> clip_ratio(const Settings& codec) {
  const auto clip = codec.find("clip");
  if (clip == codec.end() || !clip->second.is_number()) return std::nullopt;
  const double ratio = clip->second.get<double>();
  if (ratio <= 0.0 || ratio >= 1.0) return std::nullopt;
  return ratio;
}

bool clip_is_calibrated(const Settings& codec) {
  return clips_by_order(codec) && get_text(codec, "clip_source") == "calibrated";
}

bool weighs_values(const Settings& codec) { return get_text(codec, "kind") == "sparse_dense"; }

bool learns_codebook(const Settings& codec) {
  return weighs_values(codec) || get_text(codec, "kind") == "vector_codebook";
}

bool is_passthrough(const Settings& codec) { return get_text(codec, "kind") == "passthrough"; }

int64_t token_group(const Settings& codec) {
  const auto kind = codec.find("kind");
  if (kind != codec.end() && kind->second == "boosted") return get_int(codec, "boost_tokens");
  if (kind != codec.end() && kind->second != "uniform") return 1;
  const auto axis = codec.find("axis");
  return axis != codec.end() && axis->second == "channel" ? get_int(codec, "group") : 1;
}

bool spans_heads(const Settings& codec) {
  return has_param(codec, "row") && get_text(codec, "row") == "token";
}

bool has_param(const Settings& codec, const std::string& key) {
  for (const Part& part : codec_parts()) {
    if (part.name != get_text(codec, "kind")) continue;
    for (const Param& param : part.params) {
      if (param.key == key) return !param.used || param.used(codec);
    }
  }
  return false;
}

int64_t effective_group(const Settings& codec, int64_t head_dim) {
  const int64_t group = get_int(codec, "group");
  return get_text(codec, "axis") == "token" ? std::min(group, head_dim) : group;
}

namespace {

const Part& uniform_part() {
  using Type = Param::Type;
  static const Part part = {
      .family = "codec",
      .name = "uniform",
      .help = "equally spaced levels, one scale (and zero) a group",
      .params =
          {
              {.key = "bits",
               .type = Type::integer,
               .fallback = 2,
               .least = 1,
               .most = 8,
               .help = "bits of a code"},
              {.key = "axis",
               .fallback = "token",
               .choices = {"channel", "token"},
               .help = "what shares the parameters: channel = `group` tokens of one channel, "
                       "token = `group` channels of one token"},
              {.key = "group",
               .type = Type::integer,
               .fallback = 128,
               .least = 1,
               .most = 1 << 20,
               .help = "elements that share one scale and zero",
               .used = [](const Settings& c) { return !is_whole_token(c); }},
              {.key = "row",
               .fallback = "head",
               .choices = {"head", "token"},
               .help =
                   "a token's row: of each KV head, or of all heads together, which then is one "
                   "group (QuaRot's groupsize −1)",
               .used = is_per_token,
               .quiet = true},
              {.key = "grid",
               .fallback = "float_zero",
               .choices = {"float_zero", "rounded_zero", "symmetric"},
               .help = "where the levels lie"},
              {.key = "zero",
               .fallback = "value",
               .choices = {"value", "code_offset"},
               .help = "what is stored as zero point: the lowest value, or −lo/s as OSCAR's code",
               .used = [](const Settings& c) { return get_text(c, "grid") == "float_zero"; }},
              {.key = "clip",
               .type = Type::optional_real,
               .fallback = "none",
               .least = 0.0,
               .help = "clip ratio; none, 0 and 1 or more are off"},
              {.key = "clip_kind",
               .fallback = "order",
               .choices = {"order", "range"},
               .help = "order statistic of |x|, or the group's range times the ratio",
               .used = clips},
              {.key = "clip_scope",
               .fallback = "row",
               .choices = {"row", "group"},
               .help = "threshold of a whole head row, or of each group",
               .used =
                   [](const Settings& c) { return clips_by_order(c) && !clip_is_calibrated(c); },
               .no_effect = [](const std::string&, const Settings& side,
                               int64_t head_dim) -> std::optional<std::string> {
                 const Settings codec = below(side, "codec.");
                 if (get_text(codec, "axis") == "token" &&
                     effective_group(codec, head_dim) == head_dim) {
                   return "no effect by algebra: the group is the whole head row";
                 }
                 return std::nullopt;
               }},
              {.key = "clip_source",
               .fallback = "dynamic",
               .choices = {"dynamic", "calibrated"},
               .help = "threshold from the tensor itself, or from the calibration sample",
               .used = clips_by_order},
              {.key = "clip_search",
               .fallback = "sort",
               .choices = {"sort", "bisect"},
               .help = "the exact order statistic, or the bisection of OSCAR's fused kernels",
               .used =
                   [](const Settings& c) { return clips_by_order(c) && !clip_is_calibrated(c); },
               .quiet = true},
              {.key = "hold_zero",
               .type = Type::boolean,
               .fallback = false,
               .help = "widen every range to hold 0, as QuaRot's code does for keys",
               .used = has_zero,
               .quiet = true},
              {.key = "least_range",
               .type = Type::optional_real,
               .fallback = "none",
               .least = 0.0,
               .help = "a smaller range becomes this one (1e-8 in OSCAR's code)",
               .used = has_zero,
               .quiet = true},
              {.key = "zero_group",
               .fallback = "unit_step",
               .choices = {"unit_step", "unit_range"},
               .help = "an all-zero group takes a scale of 1, or the range −1..1 as OScaR's and "
                       "QuaRot's code",
               .used = [](const Settings& c) { return get_text(c, "grid") == "rounded_zero"; },
               .quiet = true,
               .no_effect =
                   [](const std::string&, const Settings&, int64_t) {
                     return std::optional<std::string>(
                         "no effect by algebra: zeros decode to zeros either way");
                   }},
              {.key = "rounding",
               .fallback = "half_even",
               .choices = {"half_even", "half_up"},
               .help = "how codes are rounded"},
              {.key = "params",
               .fallback = "fp16",
               .choices = {"fp16", "bf16", "fp32"},
               .help = "type of the stored scale and zero"},
              {.key = "codes_from",
               .fallback = "stored",
               .choices = {"stored", "exact"},
               .help = "codes follow from the stored scale, or from the one before it is rounded "
                       "to params, as in OSCAR's code",
               .used = [](const Settings& c) { return get_text(c, "params") != "fp32"; },
               .quiet = true},
              {.key = "arithmetic",
               .fallback = "fp32",
               .choices = {"fp32", "fp16", "bf16"},
               .help = "type that every operation of encoding is rounded to; codes that run in "
                       "the model's type have a 16-bit one",
               .quiet = true},
              {.key = "decode_arithmetic",
               .fallback = "fp32",
               .choices = {"fp32", "fp16", "bf16"},
               .help = "type that every operation of decoding is rounded to",
               .quiet = true},
          },
      .refuse = refuse_uniform};
  return part;
}

}  // namespace

std::vector<Param> params_like_uniform(std::initializer_list<const char*> keys) {
  std::vector<Param> params;
  for (const char* key : keys) {
    for (const Param& param : uniform_part().params) {
      if (param.key == key) params.push_back(param);
    }
  }
  return params;
}

std::vector<Param> uniform_switches() {
  std::vector<Param> params;
  for (const Param& param : uniform_part().params) {
    if (param.quiet) params.push_back(param);
  }
  return params;
}

const std::vector<Part>& codec_parts() {
  static const std::vector<Part> parts = {
      uniform_part(),
      boosted_part(),
      codebook_part(),
      sketched_codebook_part(),
      vector_codebook_part(),
      sparse_dense_part(),
      float_part(),
      {.family = "codec", .name = "passthrough", .help = "the side stays as captured"},
  };
  return parts;
}

}  // namespace kvlab::quant
