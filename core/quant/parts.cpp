#include "quant/parts.h"

#include <fmt/format.h>

namespace kvlab::quant {
namespace {

bool clips(const Settings& codec) { return clip_ratio(codec).has_value(); }

bool clips_by_order(const Settings& codec) {
  return clips(codec) && get_text(codec, "clip_kind") == "order";
}

std::optional<std::string> refuse_uniform(const Settings& side, int64_t head_dim) {
  const Settings codec = below(side, "codec.");
  const int64_t group = effective_group(codec, head_dim);
  const bool per_token = get_text(codec, "axis") == "token";
  if (per_token && head_dim % group != 0) {
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

bool is_passthrough(const Settings& codec) { return get_text(codec, "kind") == "passthrough"; }

int64_t token_group(const Settings& codec) {
  const auto axis = codec.find("axis");
  return axis != codec.end() && axis->second == "channel" ? get_int(codec, "group") : 1;
}

int64_t effective_group(const Settings& codec, int64_t head_dim) {
  const int64_t group = get_int(codec, "group");
  return get_text(codec, "axis") == "token" ? std::min(group, head_dim) : group;
}

const std::vector<Part>& codec_parts() {
  using Type = Param::Type;
  static const std::vector<Part> parts = {
      {.family = "codec",
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
                .help = "elements that share one scale and zero"},
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
               {.key = "rounding",
                .fallback = "half_even",
                .choices = {"half_even", "half_up"},
                .help = "how codes are rounded"},
               {.key = "params",
                .fallback = "fp16",
                .choices = {"fp16", "bf16", "fp32"},
                .help = "type of the stored scale and zero"},
           },
       .refuse = refuse_uniform},
      {.family = "codec", .name = "passthrough", .help = "the side stays as captured"},
  };
  return parts;
}

}  // namespace kvlab::quant
