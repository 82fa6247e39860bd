#include "cache/packed_format.h"

#include <fmt/format.h>

#include <limits>
#include <numeric>

#include "base/error.h"
#include "quant/parts.h"
#include "quant/uniform.h"
#include "transform/transform.h"

namespace kvlab::cache {
namespace {

using quant::UniformSpec;
using transform::TokenScale;

const std::string kBackends = "backends cpu and cuda: ";

Settings codec_of(const Settings& side) { return below(side, "codec."); }

bool passes(const Settings& side) { return quant::is_passthrough(codec_of(side)); }

kernels::SideFormat side_format(const UniformSpec& spec) {
  using kernels::Zero;
  kernels::SideFormat format;
  format.bits = static_cast<int>(spec.bits);
  format.axis =
      spec.axis == UniformSpec::Axis::channel ? kernels::Axis::channel : kernels::Axis::token;
  format.group = static_cast<int>(spec.group);
  format.zero = spec.grid == UniformSpec::Grid::symmetric                          ? Zero::none
                : spec.grid == UniformSpec::Grid::rounded_zero || spec.code_offset ? Zero::offset
                                                                                   : Zero::value;
  format.params = kernel_type(spec.params);
  return format;
}

/// Of those that have a kernel.
kernels::Type norm_type(TokenScale::Params params) {
  return params == TokenScale::Params::fp32   ? kernels::Type::f32
         : params == TokenScale::Params::fp16 ? kernels::Type::f16
                                              : kernels::Type::bf16;
}

/// The format of a recipe that quantizes both sides.
kernels::Format format_of(const Settings& key, const Settings& value, int64_t head_dim,
                          DType captured) {
  kernels::Format format;
  format.dim = static_cast<int>(head_dim);
  format.key = side_format(UniformSpec::from(codec_of(key), head_dim));
  format.value = side_format(UniformSpec::from(codec_of(value), head_dim));
  const TokenScale scale = TokenScale::from(key);
  if (scale.kind != TokenScale::Kind::none) {
    format.norm = scale.shared() ? kernels::Norm::heads : kernels::Norm::head;
    format.norm_type = norm_type(scale.params);
    format.norm_inverse = scale.inverse;
  }
  format.window = kernel_type(captured);
  return format;
}

kernels::WindowRule rule_of(const Settings& recipe) {
  const std::string flush = get_text(recipe, "window.flush");
  kernels::WindowRule rule;
  rule.flush = flush == "full"   ? kernels::Flush::full
               : flush == "kivi" ? kernels::Flush::kivi
               : flush == "ring" ? kernels::Flush::ring
                                 : kernels::Flush::block;
  rule.sink = static_cast<int>(get_int(recipe, "window.sink"));
  rule.recent = static_cast<int>(get_int(recipe, "window.recent"));
  rule.group = static_cast<int>(std::lcm(quant::token_group(codec_of(below(recipe, "key."))),
                                         quant::token_group(codec_of(below(recipe, "value.")))));
  return rule;
}

/// What a Format has no room for.
std::optional<std::string> refused_side(const Settings& side, const std::string& name) {
  const std::string kind = get_text(side, "codec.kind");
  if (kind != "uniform") return fmt::format("{}.codec.kind {} has no kernel", name, kind);
  for (const Param& param : quant::uniform_switches()) {
    const nlohmann::json& value = side.at("codec." + param.key);
    if (value == param.fallback || !quant::has_param(codec_of(side), param.key)) continue;
    return fmt::format("{}.codec.{} {} has no kernel", name, param.key,
                       value.is_string() ? value.get<std::string>() : value.dump());
  }
  for (const char* stage : {"reorder", "basis"}) {
    if (get_text(side, stage) == "none") continue;
    return fmt::format("{}.{} {} has no kernel", name, stage, get_text(side, stage));
  }
  if (get_text(side, "space") != "post_rope") {
    return fmt::format("{}.space pre_rope has no kernel: attention does not apply RoPE", name);
  }
  if (get_text(side, "rotate").ends_with("hadamard") && get_int(side, "rotate_heads") > 1 &&
      !get_text(side, "rotate").starts_with("covariance")) {
    return fmt::format("{}.rotate_heads {} has no kernel: a rotation is within a head", name,
                       get_int(side, "rotate_heads"));
  }
  if (get_int(side, "mix_tokens") != 0) {
    return fmt::format("{}.mix_tokens {} has no kernel", name, get_int(side, "mix_tokens"));
  }
  const TokenScale scale = TokenScale::from(side);
  if (scale.kind == TokenScale::Kind::max_heads || scale.kind == TokenScale::Kind::mean_abs_heads) {
    return fmt::format("{}.token_scale {} has no kernel", name, get_text(side, "token_scale"));
  }
  if (scale.kind != TokenScale::Kind::none && scale.params > TokenScale::Params::bf16) {
    return fmt::format("{}.token_scale_params {} has no kernel, fp32, fp16 and bf16 have", name,
                       get_text(side, "token_scale_params"));
  }
  if (name == "key") return std::nullopt;
  for (const char* key : {"center", "token_scale"}) {
    if (get_text(side, key) != "none") {
      return fmt::format("{}.{} {} has no kernel, that of keys has", name, key,
                         get_text(side, key));
    }
  }
  return std::nullopt;
}

std::optional<std::string> refused_windows(const Settings& recipe) {
  if (get_text(recipe, "window.flush") == "dynamic") {
    return "window.flush dynamic has no kernel: a kernel's windows do not look at tokens";
  }
  constexpr int64_t kMost = std::numeric_limits<int>::max() / 4;
  for (const char* key : {"window.sink", "window.recent"}) {
    if (get_int(recipe, key) > kMost) {
      return fmt::format("{} {} is more than {}", key, get_int(recipe, key), kMost);
    }
  }
  return std::nullopt;
}

/// A format whose blocks are never used: both sides stay as captured.
kernels::Format window_format(int64_t head_dim, DType captured) {
  kernels::Format format = kernels::f1(static_cast<int>(head_dim));
  format.window = kernel_type(captured);
  return format;
}

std::optional<std::string> refused(const Settings& recipe, int64_t head_dim, DType captured) {
  const Settings key = below(recipe, "key.");
  const Settings value = below(recipe, "value.");
  for (const char* section : {"protect.kind", "evict.kind"}) {
    if (get_text(recipe, section) != "none") {
      return fmt::format("{} {} has no kernel", section, get_text(recipe, section));
    }
  }
  if (captured == DType::fp32) return "float32 data have no kernel, windows hold 16 bits";
  if (passes(key) && passes(value)) return kernels::refusal(window_format(head_dim, captured));
  if (passes(key) || passes(value)) {
    return fmt::format("passthrough {} beside quantized {} have no kernel",
                       passes(key) ? "keys" : "values", passes(key) ? "values" : "keys");
  }
  if (auto what = refused_side(key, "key")) return what;
  if (auto what = refused_side(value, "value")) return what;
  if (auto what = refused_windows(recipe)) return what;
  return kernels::refusal(format_of(key, value, head_dim, captured));
}

}  // namespace

kernels::Type kernel_type(DType type) {
  return type == DType::fp32   ? kernels::Type::f32
         : type == DType::fp16 ? kernels::Type::f16
                               : kernels::Type::bf16;
}

std::optional<std::string> packed_refusal(const Settings& recipe, int64_t head_dim,
                                          DType captured) {
  if (auto what = refused(recipe, head_dim, captured)) {
    return kBackends + *what;
  }
  return std::nullopt;
}

std::optional<std::string> heads_refusal(int64_t q_heads, int64_t kv_heads) {
  constexpr int64_t kMost = 16;
  if (q_heads <= kMost * kv_heads) return std::nullopt;
  return fmt::format("{}{} query heads a KV head have no kernel, at most {} have", kBackends,
                     q_heads / kv_heads, kMost);
}

std::string nonfinite_refusal(const std::string& what) {
  return fmt::format("{}{} that hold NaN or infinity have no kernel", kBackends, what);
}

PackedFormat packed_format(const Settings& recipe, int64_t head_dim, DType captured) {
  if (auto reason = packed_refusal(recipe, head_dim, captured)) throw Unsupported(*reason);
  PackedFormat packed;
  const Settings key = below(recipe, "key.");
  if (passes(key)) {
    packed.quantized = false;
    packed.format = window_format(head_dim, captured);
    packed.rule.sink = std::numeric_limits<int>::max();
    return packed;
  }
  packed.format = format_of(key, below(recipe, "value."), head_dim, captured);
  packed.rule = rule_of(recipe);
  return packed;
}

kernels::SideEncode side_encode(const Settings& side, int64_t head_dim) {
  const UniformSpec spec = UniformSpec::from(codec_of(side), head_dim);
  const kernels::SideFormat format = side_format(spec);
  kernels::SideEncode encode;
  encode.grid.bits = format.bits;
  encode.grid.zero = format.zero;
  encode.grid.integer_zero = spec.grid == UniformSpec::Grid::rounded_zero;
  encode.grid.half_up = spec.rounding == UniformSpec::Rounding::half_up;
  encode.grid.params = format.params;
  if (spec.clip && spec.clip_kind == UniformSpec::ClipKind::range) {
    encode.grid.range_ratio = static_cast<float>(*spec.clip);
  } else if (spec.clip && spec.clip_calibrated) {
    encode.clip = kernels::Clip::calibrated;
  } else if (spec.clip) {
    const bool row = spec.clip_scope == UniformSpec::ClipScope::row;
    encode.clip = row ? kernels::Clip::row : kernels::Clip::group;
    const int64_t size = row ? head_dim : spec.group;
    encode.clip_index = static_cast<int>(*spec.clip * static_cast<double>(size));
  }

  const TokenScale scale = TokenScale::from(side);
  using Kind = TokenScale::Kind;
  encode.scale = scale.kind == Kind::none       ? kernels::TokenScale::none
                 : scale.kind == Kind::l2_heads ? kernels::TokenScale::l2_heads
                 : scale.kind == Kind::l2_head  ? kernels::TokenScale::l2_head
                 : scale.kind == Kind::max_head ? kernels::TokenScale::max_head
                                                : kernels::TokenScale::mean_abs_head;
  encode.scale_first = !scale.rotate_first;
  return encode;
}

}  // namespace kvlab::cache
