#include "data/rope.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <numbers>

#include "base/error.h"

namespace kvlab::data {
namespace {

using nlohmann::json;

double number(const json& scaling, const char* key) {
  const auto found = scaling.find(key);
  if (found == scaling.end() || !found->is_number()) {
    throw Unsupported(fmt::format("rope_scaling has no number '{}'", key));
  }
  return found->get<double>();
}

/// Llama 3: wavelengths beyond the trained context are stretched by the factor, short ones stay,
/// those between are mixed.
float stretched(float frequency, const json& scaling) {
  const double context = number(scaling, "original_max_position_embeddings");
  const double low = number(scaling, "low_freq_factor");
  const double high = number(scaling, "high_freq_factor");
  const double wavelength = 2.0 * std::numbers::pi / static_cast<double>(frequency);
  const double slow = static_cast<double>(frequency) / number(scaling, "factor");
  if (wavelength > context / low) return static_cast<float>(slow);
  if (wavelength < context / high) return frequency;
  const double share = (context / wavelength - low) / (high - low);
  return static_cast<float>((1.0 - share) * slow + share * static_cast<double>(frequency));
}

}  // namespace

Rope Rope::from(double theta, const std::string& scaling, const std::string& layout,
                int64_t head_dim) {
  Rope rope;
  if (layout == "none") {
    rope.layout = Layout::none;
    return rope;
  }
  if (layout != "half" && layout != "interleaved") {
    throw Unsupported(
        fmt::format("rope_layout must be half, interleaved or none, found '{}'", layout));
  }
  rope.layout = layout == "half" ? Layout::half : Layout::interleaved;
  if (!(theta > 0)) throw Unsupported(fmt::format("rope_theta {} is no positive number", theta));
  const json settings = scaling.empty() ? json::object() : json::parse(scaling, nullptr, false);
  if (!settings.is_object()) throw Unsupported("rope_scaling is no JSON object");
  const std::string type = settings.value("rope_type", settings.value("type", "default"));
  if (type != "default" && type != "linear" && type != "llama3") {
    throw Unsupported(
        fmt::format("rope_type '{}' is not known here: default, linear and llama3 are", type));
  }
  const double share = settings.value("partial_rotary_factor", 1.0);
  const auto rotated = static_cast<int64_t>(static_cast<double>(head_dim) * share);
  for (int64_t pair = 0; pair < rotated / 2; ++pair) {
    const float exponent = static_cast<float>(2 * pair) / static_cast<float>(rotated);
    float frequency = 1.0f / static_cast<float>(std::pow(theta, static_cast<double>(exponent)));
    if (type == "linear") frequency /= static_cast<float>(number(settings, "factor"));
    if (type == "llama3") frequency = stretched(frequency, settings);
    rope.frequencies.push_back(frequency);
  }
  return rope;
}

at::Tensor Rope::turn(const at::Tensor& x, int64_t first, double direction) const {
  if (layout == Layout::none) return x;
  const auto pairs = static_cast<int64_t>(frequencies.size());
  const at::Tensor position = at::arange(first, first + x.size(-2), at::kFloat).unsqueeze(1);
  const at::Tensor angle = (position * at::tensor(frequencies, at::kFloat)).to(at::kDouble);
  const at::Tensor cos = (angle.cos() * factor).to(x.scalar_type());
  const at::Tensor sin = (angle.sin() * (direction * factor)).to(x.scalar_type());
  const bool half = layout == Layout::half;
  const auto part = [&](const at::Tensor& of, int64_t which) {
    return half ? of.narrow(-1, which * pairs, pairs) : of.slice(-1, which, 2 * pairs, 2);
  };
  at::Tensor out = x.clone();
  part(out, 0).copy_(part(x, 0) * cos - part(x, 1) * sin);
  part(out, 1).copy_(part(x, 1) * cos + part(x, 0) * sin);
  return out;
}

}  // namespace kvlab::data
