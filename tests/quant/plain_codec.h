#pragma once

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <string>
#include <vector>

#include "base/part.h"

/// The uniform codec once more, written from contract section 4.2 with scalars and loops: what the
/// tensor form is judged against.
namespace plain {

/// All settings of a uniform codec, fp32 parameters, with changes.
inline kvlab::Settings uniform(kvlab::Settings changes = {}) {
  changes.merge(kvlab::Settings{{"kind", "uniform"},
                                {"bits", 2},
                                {"axis", "token"},
                                {"row", "head"},
                                {"group", 128},
                                {"grid", "float_zero"},
                                {"zero", "value"},
                                {"clip", "none"},
                                {"clip_kind", "order"},
                                {"clip_scope", "row"},
                                {"clip_source", "dynamic"},
                                {"clip_search", "sort"},
                                {"hold_zero", false},
                                {"least_range", "none"},
                                {"zero_group", "unit_step"},
                                {"codes_from", "stored"},
                                {"arithmetic", "fp32"},
                                {"decode_arithmetic", "fp32"},
                                {"rounding", "half_even"},
                                {"params", "fp32"}});
  return changes;
}

inline at::Tensor gaussian(at::IntArrayRef shape, uint64_t seed) {
  return at::randn(shape, at::make_generator<at::CPUGeneratorImpl>(seed));
}

/// Uniform on [0, 1).
inline at::Tensor flat_random(at::IntArrayRef shape, uint64_t seed) {
  return at::rand(shape, at::make_generator<at::CPUGeneratorImpl>(seed));
}

/// Whole numbers least … most as float32.
inline at::Tensor whole(int64_t least, int64_t most, at::IntArrayRef shape, uint64_t seed) {
  return at::randint(least, most + 1, shape, at::make_generator<at::CPUGeneratorImpl>(seed))
      .to(at::kFloat);
}

inline float largest(const std::string& type) {
  if (type == "fp16") return 65504.0f;
  // bfloat16 keeps 8 significant bits of a float: 255·2^120.
  return type == "bf16" ? static_cast<float>(std::ldexp(255.0, 120)) : FLT_MAX;
}

/// Limited to the finite range of the type and rounded to it, ties to even, by the spacing of its
/// numbers.
inline float round_to(float x, const std::string& type) {
  const float limited = std::clamp(x, -largest(type), largest(type));
  if (type == "fp32" || limited == 0.0f) return limited;
  const int significant = type == "fp16" ? 11 : 8;
  const int smallest = type == "fp16" ? -24 : -133;
  int exponent = 0;
  std::frexp(limited, &exponent);
  const double spacing = std::ldexp(1.0, std::max(exponent - significant, smallest));
  return static_cast<float>(std::nearbyint(limited / spacing) * spacing);
}

inline float rounded(float x, bool half_up) {
  return half_up ? std::floor(x + 0.5f) : std::nearbyint(x);
}

/// What becomes of one group.
struct Group {
  float scale = 0.0f;
  float zero = 0.0f;
  std::vector<int> codes;
  std::vector<float> values;
  int64_t saturated = 0;
};

/// `clipped` is what the codec sees, `unclipped` what saturation is counted on.
inline Group quantize(const std::vector<float>& clipped, const std::vector<float>& unclipped,
                      const kvlab::Settings& codec) {
  const std::string params = kvlab::get_text(codec, "params");
  const std::string grid = kvlab::get_text(codec, "grid");
  const bool half_up = kvlab::get_text(codec, "rounding") == "half_up";
  const auto bits = static_cast<int>(kvlab::get_int(codec, "bits"));
  float lo = *std::min_element(clipped.begin(), clipped.end());
  float hi = *std::max_element(clipped.begin(), clipped.end());
  const nlohmann::json& clip = codec.at("clip");
  if (clip.is_number() && clip.get<double>() > 0.0 && clip.get<double>() < 1.0 &&
      kvlab::get_text(codec, "clip_kind") == "range") {
    const auto ratio = static_cast<float>(clip.get<double>());
    lo *= ratio;
    hi *= ratio;
  }
  lo = std::clamp(lo, -largest(params), largest(params));
  hi = std::clamp(hi, -largest(params), largest(params));

  Group group;
  const auto add = [&](float code, float offset, float most) {
    const float held = std::clamp(code, 0.0f, most);
    group.codes.push_back(static_cast<int>(held));
    group.values.push_back((held - offset) * group.scale);
  };
  const auto outside = [](float code, float most) { return code < 0.0f || code > most; };

  if (grid == "symmetric") {
    const auto m = static_cast<float>((1 << (bits - 1)) - 1);
    group.scale = round_to(std::max(-lo, hi) / m, params);
    if (group.scale == 0.0f) group.scale = 1.0f;
    for (size_t i = 0; i < clipped.size(); ++i) {
      add(rounded(clipped[i] / group.scale, half_up) + m, m, 2 * m);
      group.saturated += outside(rounded(unclipped[i] / group.scale, half_up) + m, 2 * m);
    }
    return group;
  }

  const auto most = static_cast<float>((1 << bits) - 1);
  const float step = round_to((hi - lo) / most, params);
  const bool flat = hi == lo || step == 0.0f;
  const float stored_lo = round_to(lo, params);
  group.scale = step;
  if (grid == "float_zero" && kvlab::get_text(codec, "zero") == "value") {
    group.zero = stored_lo;
    for (size_t i = 0; i < clipped.size(); ++i) {
      const auto code = [&](float x) { return rounded((x - group.zero) / group.scale, half_up); };
      const float held = flat ? 0.0f : std::clamp(code(clipped[i]), 0.0f, most);
      group.codes.push_back(static_cast<int>(held));
      group.values.push_back(held * group.scale + group.zero);
      if (!flat) group.saturated += outside(code(unclipped[i]), most);
    }
    return group;
  }

  if (flat) group.scale = stored_lo == 0.0f ? 1.0f : std::fabs(stored_lo);
  const float origin = -(flat ? stored_lo : lo) / group.scale;
  if (grid == "float_zero") {  // code_offset
    group.zero = round_to(origin, params);
    for (size_t i = 0; i < clipped.size(); ++i) {
      const auto code = [&](float x) { return rounded(x / group.scale + group.zero, half_up); };
      add(flat ? 0.0f : code(clipped[i]), group.zero, most);
      if (!flat) group.saturated += outside(code(unclipped[i]), most);
    }
    return group;
  }
  group.zero = round_to(std::nearbyint(origin), params);
  for (size_t i = 0; i < clipped.size(); ++i) {
    const auto code = [&](float x) { return rounded(x / group.scale, half_up) + group.zero; };
    add(code(clipped[i]), group.zero, most);
    group.saturated += outside(code(unclipped[i]), most);
  }
  return group;
}

/// What becomes of [H, n, d].
struct Coded {
  at::Tensor codes;      // uint8 [H, n, d]
  at::Tensor values;     // float32 [H, n, d]
  at::Tensor params;     // float32, shaped as Encoded::params
  at::Tensor saturated;  // int64 [H]
};

/// Ascending |x| at index int(ratio·n).
inline float order_statistic(std::vector<float> x, double ratio) {
  for (float& value : x) value = std::fabs(value);
  std::sort(x.begin(), x.end());
  return x[static_cast<size_t>(ratio * static_cast<double>(x.size()))];
}

/// `calibrated` holds one threshold a head where clip_source is calibrated.
inline Coded quantize(const at::Tensor& tensor, const kvlab::Settings& codec,
                      const std::vector<float>& calibrated = {}) {
  const at::Tensor x = tensor.contiguous();
  const int64_t heads = x.size(0);
  const int64_t n = x.size(1);
  const int64_t d = x.size(2);
  const bool per_token = kvlab::get_text(codec, "axis") == "token";
  const int64_t asked = kvlab::get_int(codec, "group");
  const int64_t size = per_token ? std::min(asked, d) : asked;
  const float* in = x.const_data_ptr<float>();
  const auto at = [&](int64_t h, int64_t t, int64_t c) { return (h * n + t) * d + c; };

  const nlohmann::json& clip = codec.at("clip");
  const bool order = clip.is_number() && clip.get<double>() > 0.0 && clip.get<double>() < 1.0 &&
                     kvlab::get_text(codec, "clip_kind") == "order";
  const bool from_calibration = order && kvlab::get_text(codec, "clip_source") == "calibrated";
  const bool by_group =
      order && !from_calibration && kvlab::get_text(codec, "clip_scope") == "group";
  std::vector<float> clipped(in, in + x.numel());
  const auto limit = [&](int64_t i, float threshold) {
    clipped[static_cast<size_t>(i)] =
        std::clamp(clipped[static_cast<size_t>(i)], -threshold, threshold);
  };
  for (int64_t h = 0; order && !by_group && h < heads; ++h) {
    for (int64_t t = 0; t < n; ++t) {
      const float* row = in + at(h, t, 0);
      const float threshold = from_calibration
                                  ? calibrated[static_cast<size_t>(h)]
                                  : order_statistic({row, row + d}, clip.get<double>());
      for (int64_t c = 0; c < d; ++c) limit(at(h, t, c), threshold);
    }
  }

  const bool has_zero = kvlab::get_text(codec, "grid") != "symmetric";
  const int64_t rows = per_token ? n : n / size;
  const int64_t columns = per_token ? d / size : d;
  Coded coded;
  coded.codes = at::zeros({heads, n, d}, at::kByte);
  coded.values = at::zeros({heads, n, d}, at::kFloat);
  coded.params = at::zeros({heads, rows, columns, has_zero ? 2 : 1}, at::kFloat);
  coded.saturated = at::zeros({heads}, at::kLong);
  for (int64_t h = 0; h < heads; ++h) {
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t column = 0; column < columns; ++column) {
        std::vector<int64_t> members;
        for (int64_t i = 0; i < size; ++i) {
          members.push_back(per_token ? at(h, row, column * size + i)
                                      : at(h, row * size + i, column));
        }
        std::vector<float> before;
        for (const int64_t i : members) before.push_back(in[i]);
        if (by_group) {
          const float threshold = order_statistic(before, clip.get<double>());
          for (const int64_t i : members) limit(i, threshold);
        }
        std::vector<float> after;
        for (const int64_t i : members) after.push_back(clipped[static_cast<size_t>(i)]);
        const Group group = quantize(after, before, codec);
        for (size_t i = 0; i < members.size(); ++i) {
          coded.codes.mutable_data_ptr<uint8_t>()[members[i]] =
              static_cast<uint8_t>(group.codes[i]);
          coded.values.mutable_data_ptr<float>()[members[i]] = group.values[i];
        }
        float* params = coded.params[h][row][column].mutable_data_ptr<float>();
        params[0] = group.scale;
        if (has_zero) params[1] = group.zero;
        coded.saturated.mutable_data_ptr<int64_t>()[h] += group.saturated;
      }
    }
  }
  return coded;
}

}  // namespace plain
