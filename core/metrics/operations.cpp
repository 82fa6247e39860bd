#include "metrics/operations.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "base/nan.h"

namespace kvlab::metrics {
namespace {

constexpr double kMillion = 1e6;

/// A number that counts what is done to it.
struct Counted {
  double value = 0;
  int64_t* count = nullptr;
};

Counted counted(const Counted& like, double value) {
  ++*like.count;
  return {value, like.count};
}
Counted operator+(const Counted& a, const Counted& b) { return counted(a, a.value + b.value); }
Counted operator-(const Counted& a, const Counted& b) { return counted(a, a.value - b.value); }
Counted operator*(const Counted& a, const Counted& b) { return counted(a, a.value * b.value); }
Counted operator/(const Counted& a, const Counted& b) { return counted(a, a.value / b.value); }
bool operator<(const Counted& a, const Counted& b) { return counted(a, 0), a.value < b.value; }
Counted magnitude(const Counted& a) { return counted(a, std::abs(a.value)); }
Counted root(const Counted& a) { return counted(a, std::sqrt(a.value)); }
Counted rounded(const Counted& a) { return counted(a, std::nearbyint(a.value)); }
Counted smaller(const Counted& a, const Counted& b) { return b < a ? b : a; }
Counted larger(const Counted& a, const Counted& b) { return a < b ? b : a; }

using Values = std::vector<Counted>;

enum class Rotation { none, butterflies, dense };

/// The parts of a side that touch every element.
struct Parts {
  bool centred = false;
  Rotation rotation = Rotation::none;
  std::string token_scale = "none";
  bool stores_inverse = false;
  std::string kind, grid;
  bool has_offset = false;  // zero: code_offset
  bool half_up = false;
  std::string clip_kind = "none";
  bool clips_groups = false;
  double clip = 0;
  int64_t bits = 2, group = 0, head_dim = 0;
};

std::string text_or(const Settings& settings, const std::string& key, const std::string& other) {
  const auto found = settings.find(key);
  return found != settings.end() && found->second.is_string() ? found->second.get<std::string>()
                                                              : other;
}

Parts parts_of(const calibrate::PreparedSide& key, const Settings& side, int64_t head_dim) {
  Parts parts;
  parts.centred = key.transform.center().defined();
  // A Hadamard matrix is never stored: it is applied by butterflies.
  if (key.transform.rotation().defined()) {
    parts.rotation = key.stored_rotation.defined() ? Rotation::dense : Rotation::butterflies;
  }
  parts.token_scale = text_or(side, "token_scale", "none");
  parts.stores_inverse = text_or(side, "norm_op", "") == "rsqrt";
  parts.kind = text_or(side, "codec.kind", "");
  parts.grid = text_or(side, "codec.grid", "");
  parts.has_offset = text_or(side, "codec.zero", "") == "code_offset";
  parts.half_up = text_or(side, "codec.rounding", "") == "half_up";
  const auto clip = side.find("codec.clip");
  if (clip != side.end() && clip->second.is_number()) {
    parts.clip = clip->second.get<double>();
    if (parts.clip > 0 && parts.clip < 1)
      parts.clip_kind = text_or(side, "codec.clip_kind", "order");
  }
  parts.clips_groups = text_or(side, "codec.clip_scope", "row") == "group";
  const auto number = [&](const char* name, int64_t other) {
    const auto found = side.find(name);
    return found != side.end() && found->second.is_number_integer() ? found->second.get<int64_t>()
                                                                    : other;
  };
  parts.bits = number("codec.bits", 2);
  parts.group = number("codec.group", head_dim);
  if (text_or(side, "codec.axis", "token") == "token")
    parts.group = std::min(parts.group, head_dim);
  parts.head_dim = head_dim;
  return parts;
}

void rotate(const Parts& parts, Values& row) {
  const size_t d = row.size();
  if (parts.rotation == Rotation::butterflies) {
    for (size_t half = 1; half < d; half *= 2) {
      for (size_t i = 0; i + half < d; ++i) {
        if ((i / half) % 2 != 0) continue;
        const Counted sum = row[i] + row[i + half];
        row[i + half] = row[i] - row[i + half];
        row[i] = sum;
      }
    }
    const Counted norm{1 / std::sqrt(static_cast<double>(d)), row[0].count};
    for (Counted& x : row) x = x * norm;
  } else if (parts.rotation == Rotation::dense) {
    const Values from = row;
    for (size_t j = 0; j < d; ++j) {
      const Counted weight{j == 0 ? 1.0 : 0.5, row[0].count};
      row[j] = from[0] * weight;
      for (size_t i = 1; i < d; ++i) row[j] = row[j] + from[i] * weight;
    }
  }
}

/// Divides by the row's scale. A scale over all heads adds up the rows' parts: as much work.
void scale(const Parts& parts, Values& row) {
  if (parts.token_scale == "none") return;
  Counted size{0, row[0].count};
  for (const Counted& x : row) {
    if (parts.token_scale.starts_with("max_head")) {
      size = larger(size, magnitude(x));
    } else if (parts.token_scale.starts_with("mean_abs_head")) {
      size = size + magnitude(x);
    } else {
      size = size + x * x;
    }
  }
  if (parts.token_scale.starts_with("mean_abs_head")) {
    size = size / Counted{static_cast<double>(row.size()), row[0].count};
  } else if (!parts.token_scale.starts_with("max_head")) {
    size = root(size);
  }
  if (parts.stores_inverse) {
    size = Counted{1, row[0].count} / size;
    for (Counted& x : row) x = x * size;
  } else {
    for (Counted& x : row) x = x / size;
  }
}

void clip_by_order(const Parts& parts, Values& values) {
  Values sizes;
  for (const Counted& x : values) sizes.push_back(magnitude(x));
  const auto at = static_cast<std::ptrdiff_t>(parts.clip * static_cast<double>(values.size()));
  std::nth_element(sizes.begin(), sizes.begin() + at, sizes.end());
  const Counted threshold = sizes[static_cast<size_t>(at)];
  const Counted low{-threshold.value, threshold.count};
  for (Counted& x : values) x = larger(low, smaller(x, threshold));
}

Counted nearest(const Parts& parts, const Counted& x) {
  return parts.half_up ? rounded(x + Counted{0.5, x.count}) : rounded(x);
}

/// Codes of a group; one operation or more for each of its elements, and some for the group.
void quantize(const Parts& parts, Values& group) {
  const auto constant = [&](double value) { return Counted{value, group[0].count}; };
  const Counted most = constant(std::pow(2.0, static_cast<double>(parts.bits)) - 1);
  const Counted least = constant(0);
  const auto limited = [&](const Counted& code) { return smaller(larger(code, least), most); };
  if (parts.grid == "symmetric") {
    Counted reach = magnitude(group[0]);
    for (size_t i = 1; i < group.size(); ++i) reach = larger(reach, magnitude(group[i]));
    const Counted step = reach / most;
    for (Counted& x : group) x = limited(nearest(parts, x / step) + most);
    return;
  }
  Counted lo = group[0];
  Counted hi = group[0];
  for (size_t i = 1; i < group.size(); ++i) {
    lo = smaller(lo, group[i]);
    hi = larger(hi, group[i]);
  }
  if (parts.clip_kind == "range") {
    lo = lo * constant(parts.clip);
    hi = hi * constant(parts.clip);
  }
  const Counted step = (hi - lo) / most;
  if (parts.grid == "rounded_zero") {
    const Counted zero = rounded(least - lo / step);
    for (Counted& x : group) x = limited(nearest(parts, x / step) + zero);
  } else if (parts.has_offset) {
    const Counted zero = least - lo / step;
    for (Counted& x : group) x = limited(nearest(parts, x / step + zero));
  } else {
    for (Counted& x : group) x = limited(nearest(parts, (x - lo) / step));
  }
}

/// Numbers without ties or order.
Values example(int64_t size, int64_t* count) {
  Values values;
  for (int64_t i = 0; i < size; ++i) {
    values.push_back({std::sin(static_cast<double>(7 * i + 1)), count});
  }
  return values;
}

/// Operations a token of one head takes to encode.
double counted_encode(const Parts& parts) {
  int64_t of_row = 0;
  Values row = example(parts.head_dim, &of_row);
  if (parts.centred) {
    for (Counted& x : row) x = x - Counted{0.1, &of_row};
  }
  rotate(parts, row);
  scale(parts, row);
  const bool by_order = parts.clip_kind == "order";
  if (by_order && !parts.clips_groups) clip_by_order(parts, row);
  int64_t of_group = 0;
  Values group = example(parts.group, &of_group);
  if (by_order && parts.clips_groups) clip_by_order(parts, group);
  quantize(parts, group);
  const double groups = static_cast<double>(parts.head_dim) / static_cast<double>(parts.group);
  return static_cast<double>(of_row) + groups * static_cast<double>(of_group);
}

/// Operations a query row takes to rotate.
double counted_rotation(const Parts& parts) {
  int64_t count = 0;
  Values row = example(parts.head_dim, &count);
  rotate(parts, row);
  return static_cast<double>(count);
}

/// The model's operations an element takes to encode.
double model_encode(const Parts& parts) {
  constexpr double kQuantize = 5, kScale = 3;
  const auto d = static_cast<double>(parts.head_dim);
  const double rotation = parts.rotation == Rotation::none          ? 0
                          : parts.rotation == Rotation::butterflies ? 2 * std::log2(d)
                                                                    : 2 * d;
  return kQuantize + rotation + (parts.token_scale == "none" ? 0 : kScale);
}

}  // namespace

Arrays operations(const calibrate::PreparedSide& key, const Settings& side,
                  const cache::Windows& windows, int64_t tokens, int64_t kv_heads, int64_t q_heads,
                  int64_t head_dim) {
  const auto number = [](double value) { return at::scalar_tensor(value, at::kDouble); };
  const auto arrays = [&](double encode, double decode, double model_of_encode,
                          double model_of_decode) {
    return Arrays{{"encode_mops", number(encode / kMillion)},
                  {"decode_mops", number(decode / kMillion)},
                  {"encode_mops_model", number(model_of_encode / kMillion)},
                  {"decode_mops_model", number(model_of_decode / kMillion)}};
  };
  if (key.passthrough) return arrays(0, 0, 0, 0);
  const Parts parts = parts_of(key, side, head_dim);
  if (parts.kind != "uniform") return arrays(kNaN, kNaN, kNaN, kNaN);

  const auto rows = static_cast<double>(kv_heads);
  const double elements = rows * static_cast<double>(head_dim);
  const auto length = static_cast<double>(tokens);
  const auto history = static_cast<double>(windows.boundary(cache::Windows::Side::key, tokens - 1) -
                                           windows.begin());
  const bool is_scaled = parts.token_scale != "none";
  // Every grid decodes by one multiplication and one addition.
  constexpr double kDecode = 2;
  const double encode = rows * counted_encode(parts);
  const double decode =
      history * (elements * kDecode + (is_scaled ? static_cast<double>(q_heads) : 0)) +
      static_cast<double>(q_heads) * counted_rotation(parts) + encode;
  const double model = elements * model_encode(parts);
  return arrays(length * encode, decode, length * model,
                history * elements * (kDecode + (is_scaled ? 1 : 0)) + model);
}

}  // namespace kvlab::metrics
