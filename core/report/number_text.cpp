#include "report/number_text.h"

#include <fmt/format.h>

#include <cmath>

namespace kvlab::report {

std::string short_number(double value) {
  constexpr double kSmallest = 1e-4, kWhole = 999.95, kLargest = 1e9;
  if (std::isnan(value)) return "-";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  const double size = std::abs(value);
  if (size == 0) return "0";
  if (size < kSmallest || size >= kLargest) return fmt::format("{:.3e}", value);
  if (size >= kWhole) return fmt::format("{:.0f}", value);
  return fmt::format("{:#.4g}", value);
}

std::string two_digits(double value) { return fmt::format("{:.2g}", value); }

std::string exact_number(double value) { return std::isnan(value) ? "" : fmt::format("{}", value); }

}  // namespace kvlab::report
