#include "data/rope.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numbers>

#include "base/error.h"

namespace kvlab::data {
namespace {

using nlohmann::json;

/// Frequencies of wavelengths that the model saw in full are kept, long ones are divided by the
/// factor, those between are mixed (Llama 3.1).
at::Tensor llama3(const at::Tensor& plain, const RopeSpec& spec) {
  const at::Tensor waves = 2 * std::numbers::pi / plain;
  const double longest = spec.original_positions / spec.low_factor;
  const double shortest = spec.original_positions / spec.high_factor;
  const at::Tensor divided = at::where(waves.gt(longest), plain / spec.factor, plain);
  const at::Tensor share =
      (spec.original_positions / waves - spec.low_factor) / (spec.high_factor - spec.low_factor);
  const at::Tensor mixed = (1 - share) * divided / spec.factor + share * divided;
  const at::Tensor between = waves.ge(shortest).logical_and_(waves.le(longest));
  return at::where(between, mixed, divided);
}

/// Fast channels are kept, slow ones divided by the factor, a linear ramp lies between (YaRN, arXiv
/// 2309.00071).
at::Tensor yarn(const at::Tensor& powers, const RopeSpec& spec, int64_t channels) {
  const auto d = static_cast<double>(channels);
  const auto channel_of = [&](double turns) {
    return d * std::log(spec.original_positions / (turns * 2 * std::numbers::pi)) /
           (2 * std::log(spec.theta));
  };
  double low = channel_of(spec.beta_fast);
  double high = channel_of(spec.beta_slow);
  if (spec.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, d - 1);
  if (low == high) high += 0.001;  // as transformers avoids a division by 0
  const at::Tensor slow =
      ((at::arange(channels / 2, at::kFloat) - low) / (high - low)).clamp_(0, 1);
  const at::Tensor fast = 1 - slow;
  return (spec.factor * powers).reciprocal() * (1 - fast) + powers.reciprocal() * fast;
}

double number(const json& scaling, const char* key) {
  const auto found = scaling.find(key);
  if (found == scaling.end() || !found->is_number()) {
    throw Unsupported(fmt::format("rope_scaling has no number '{}'", key));
  }
  return found->get<double>();
}

/// What scaling_text writes, and what transformers' configurations have.
RopeSpec spec_of(double theta, const json& scaling) {
  RopeSpec spec;
  spec.theta = theta;
  const std::string type = scaling.value("rope_type", scaling.value("type", "default"));
  if (type == "default") return spec;
  if (type != "linear" && type != "llama3" && type != "yarn") {
    throw Unsupported(fmt::format(
        "rope_type '{}' is not known here: default, linear, llama3 and yarn are", type));
  }
  spec.factor = number(scaling, "factor");
  if (type == "linear") {
    spec.kind = RopeSpec::Kind::linear;
    return spec;
  }
  spec.original_positions = number(scaling, "original_max_position_embeddings");
  if (type == "llama3") {
    spec.kind = RopeSpec::Kind::llama3;
    spec.low_factor = number(scaling, "low_freq_factor");
    spec.high_factor = number(scaling, "high_freq_factor");
    return spec;
  }
  spec.kind = RopeSpec::Kind::yarn;
  spec.attention_factor = number(scaling, "attention_factor");
  spec.beta_fast = scaling.value("beta_fast", spec.beta_fast);
  spec.beta_slow = scaling.value("beta_slow", spec.beta_slow);
  spec.truncate = scaling.value("truncate", spec.truncate);
  return spec;
}

}  // namespace

at::Tensor inverse_frequencies(const RopeSpec& spec, int64_t channels) {
  const at::Tensor exponents =
      at::arange(0, channels, 2, at::kFloat) / static_cast<double>(channels);
  const at::Tensor powers = at::pow(spec.theta, exponents);
  switch (spec.kind) {
    case RopeSpec::Kind::plain:
      break;
    case RopeSpec::Kind::linear:
      return powers.reciprocal() / spec.factor;
    case RopeSpec::Kind::llama3:
      return llama3(powers.reciprocal(), spec);
    case RopeSpec::Kind::yarn:
      return yarn(powers, spec, channels);
  }
  return powers.reciprocal();
}

Rope Rope::of(const RopeSpec& spec, int64_t head_dim) {
  Rope rope;
  rope.frequencies = inverse_frequencies(spec, head_dim);
  rope.factor = spec.attention_factor;
  return rope;
}

Rope Rope::from(double theta, const std::string& scaling, const std::string& layout,
                int64_t head_dim) {
  if (layout == "none") {
    Rope rope;
    rope.layout = Layout::none;
    return rope;
  }
  if (layout != "half" && layout != "interleaved") {
    throw Unsupported(
        fmt::format("rope_layout must be half, interleaved or none, found '{}'", layout));
  }
  if (!(theta > 0)) throw Unsupported(fmt::format("rope_theta {} is no positive number", theta));
  const json settings = scaling.empty() ? json::object() : json::parse(scaling, nullptr, false);
  if (!settings.is_object()) throw Unsupported("rope_scaling is no JSON object");
  const double share = settings.value("partial_rotary_factor", 1.0);
  Rope rope = of(spec_of(theta, settings),
                 static_cast<int64_t>(static_cast<double>(head_dim) * share) / 2 * 2);
  rope.layout = layout == "half" ? Layout::half : Layout::interleaved;
  return rope;
}

Rope::Angles Rope::angles(int64_t first, int64_t n) const {
  const at::Tensor positions =
      at::arange(origin + first, origin + first + n, frequencies.options()).unsqueeze(1);
  const at::Tensor angle = (positions * frequencies).to(at::kDouble);
  return {angle.cos() * factor, angle.sin() * factor};
}

at::Tensor Rope::turned(const at::Tensor& x, const Angles& angles) const {
  const int64_t pairs = frequencies.size(0);
  const at::Tensor cos = angles.cos.to(x.scalar_type());
  const at::Tensor sin = angles.sin.to(x.scalar_type());
  const bool half = layout == Layout::half;
  const auto part = [&](const at::Tensor& of, int64_t which) {
    return half ? of.narrow(-1, which * pairs, pairs) : of.slice(-1, which, 2 * pairs, 2);
  };
  at::Tensor out = x.clone();
  part(out, 0).copy_(part(x, 0) * cos - part(x, 1) * sin);
  part(out, 1).copy_(part(x, 1) * cos + part(x, 0) * sin);
  return out;
}

at::Tensor Rope::turned(const at::Tensor& x, int64_t first) const {
  return layout == Layout::none ? x : turned(x, angles(first, x.size(-2)));
}

at::Tensor Rope::turned_back(const at::Tensor& x, int64_t first) const {
  if (layout == Layout::none) return x;
  const Angles forth = angles(first, x.size(-2));
  return turned(x, {forth.cos, -forth.sin});
}

std::string scaling_text(const RopeSpec& spec) {
  json scaling = {{"factor", spec.factor}};
  switch (spec.kind) {
    case RopeSpec::Kind::plain:
      return {};
    case RopeSpec::Kind::linear:
      scaling["rope_type"] = "linear";
      break;
    case RopeSpec::Kind::llama3:
      scaling["rope_type"] = "llama3";
      scaling["low_freq_factor"] = spec.low_factor;
      scaling["high_freq_factor"] = spec.high_factor;
      scaling["original_max_position_embeddings"] = spec.original_positions;
      break;
    case RopeSpec::Kind::yarn:
      scaling["rope_type"] = "yarn";
      scaling["original_max_position_embeddings"] = spec.original_positions;
      scaling["attention_factor"] = spec.attention_factor;
      scaling["beta_fast"] = spec.beta_fast;
      scaling["beta_slow"] = spec.beta_slow;
      scaling["truncate"] = spec.truncate;
      break;
  }
  return scaling.dump();
}

}  // namespace kvlab::data
