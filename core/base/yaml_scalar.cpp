#include "base/yaml_scalar.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <optional>
#include <string_view>

namespace kvlab::yaml {
namespace {

bool all_digits(std::string_view text) {
  return !text.empty() &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

bool is_real(std::string_view text) {
  if (!text.empty() && (text[0] == '-' || text[0] == '+')) text.remove_prefix(1);
  const size_t exponent = text.find_first_of("eE");
  if (exponent != std::string_view::npos) {
    std::string_view power = text.substr(exponent + 1);
    if (!power.empty() && (power[0] == '-' || power[0] == '+')) power.remove_prefix(1);
    if (!all_digits(power)) return false;
    text = text.substr(0, exponent);
  }
  const size_t point = text.find('.');
  if (point == std::string_view::npos) return all_digits(text);
  const std::string_view whole = text.substr(0, point);
  const std::string_view fraction = text.substr(point + 1);
  return (whole.empty() || all_digits(whole)) && (fraction.empty() || all_digits(fraction)) &&
         !(whole.empty() && fraction.empty());
}

template <typename Number>
std::optional<Number> number_from(std::string_view text, int base = 10) {
  Number number{};
  std::from_chars_result result{};
  if constexpr (std::is_integral_v<Number>) {
    result = std::from_chars(text.data(), text.data() + text.size(), number, base);
  } else {
    result = std::from_chars(text.data(), text.data() + text.size(), number);
  }
  if (result.ec != std::errc{} || result.ptr != text.data() + text.size()) return std::nullopt;
  return number;
}

}  // namespace

nlohmann::json typed_scalar(const std::string& text) {
  if (text.empty() || text == "~" || text == "null" || text == "Null" || text == "NULL") {
    return nullptr;
  }
  if (text == "true" || text == "True" || text == "TRUE") return true;
  if (text == "false" || text == "False" || text == "FALSE") return false;
  if (text.starts_with("0x") || text.starts_with("0o")) {
    if (auto number =
            number_from<int64_t>(std::string_view(text).substr(2), text[1] == 'x' ? 16 : 8)) {
      return *number;
    }
    return text;
  }
  const std::string_view unsigned_part =
      std::string_view(text).substr(text[0] == '-' || text[0] == '+' ? 1 : 0);
  if (unsigned_part == ".inf" || unsigned_part == ".Inf" || unsigned_part == ".INF") {
    return text[0] == '-' ? -std::numeric_limits<double>::infinity()
                          : std::numeric_limits<double>::infinity();
  }
  if (text == ".nan" || text == ".NaN" || text == ".NAN") {
    return std::numeric_limits<double>::quiet_NaN();
  }
  // from_chars knows no plus sign.
  const std::string_view number = text[0] == '+' ? unsigned_part : std::string_view(text);
  if (all_digits(unsigned_part)) {
    if (auto integer = number_from<int64_t>(number)) return *integer;
  }
  if (is_real(text)) {
    if (auto real = number_from<double>(number)) return *real;
  }
  return text;
}

}  // namespace kvlab::yaml
