#include "quant/gaussian_levels.h"

#include <cmath>
#include <cstdlib>
#include <limits>
#include <numbers>

namespace kvlab::quant {
namespace {

double density(double x) { return std::exp(-x * x / 2.0) / std::sqrt(2.0 * std::numbers::pi); }

/// P(X > x), which keeps its digits in the upper tail.
double above(double x) { return std::erfc(x / std::numbers::sqrt2) / 2.0; }

}  // namespace

std::vector<double> gaussian_levels(int64_t bits) {
  // The upper half: levels are symmetric about 0, which is a threshold.
  const auto half = static_cast<size_t>(int64_t{1} << (bits - 1));
  std::vector<double> levels(half);
  for (size_t i = 0; i < half; ++i) {
    levels[i] = 3.5 * (static_cast<double>(i) + 0.5) / static_cast<double>(half);
  }
  constexpr int kMostSteps = 200000;
  for (int step = 0; step < kMostSteps; ++step) {
    double moved = 0.0;
    double low = 0.0;
    for (size_t i = 0; i < half; ++i) {
      const bool last = i + 1 == half;
      const double high =
          last ? std::numeric_limits<double>::infinity() : (levels[i] + levels[i + 1]) / 2.0;
      const double mass = above(low) - (last ? 0.0 : above(high));
      const double mean = (density(low) - (last ? 0.0 : density(high))) / mass;
      moved = std::max(moved, std::fabs(mean - levels[i]));
      levels[i] = mean;
      low = high;
    }
    if (moved < 1e-14) break;
  }
  std::vector<double> all;
  for (size_t i = half; i-- > 0;) all.push_back(-levels[i]);
  all.insert(all.end(), levels.begin(), levels.end());
  return all;
}

std::vector<double> levels_from(const std::string& text, int64_t bits) {
  if (text == "gaussian") return gaussian_levels(bits);
  std::vector<double> levels;
  const char* at = text.c_str();
  while (true) {
    char* end = nullptr;
    const double level = std::strtod(at, &end);
    const bool ascends = levels.empty() || level > levels.back();
    if (end == at || !std::isfinite(level) || !ascends) return {};
    levels.push_back(level);
    while (*end == ' ') ++end;
    if (*end == '\0') return levels;
    if (*end != ',') return {};
    at = end + 1;
  }
}

}  // namespace kvlab::quant
