#include "method/values.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/names.h"
#include "base/yaml.h"

namespace kvlab::method {
namespace {

std::string range_of(const Param& param) {
  const bool below = std::isfinite(param.least);
  const bool above = std::isfinite(param.most);
  if (below && above) return fmt::format(" from {} to {}", param.least, param.most);
  if (below) return fmt::format(" of at least {}", param.least);
  if (above) return fmt::format(" of at most {}", param.most);
  return "";
}

std::string expected(const Param& param) {
  switch (param.type) {
    case Param::Type::boolean:
      return "true or false";
    case Param::Type::integer:
      return "a whole number" + range_of(param);
    case Param::Type::real:
      return "a number" + range_of(param);
    case Param::Type::optional_real:
      return "none or a number" + range_of(param);
    case Param::Type::choice:
      return "one of " + join(param.choices);
    case Param::Type::text:
      return "text";
  }
  return "";
}

bool in_range(const Param& param, const nlohmann::json& value) {
  const auto number = value.get<double>();
  return number >= param.least && number <= param.most;  // false for NaN
}

bool fits(const Param& param, const nlohmann::json& value) {
  switch (param.type) {
    case Param::Type::boolean:
      return value.is_boolean();
    case Param::Type::integer:
      return value.is_number_integer() && in_range(param, value);
    case Param::Type::optional_real:
      if (value == "none") return true;
      [[fallthrough]];
    case Param::Type::real:
      return value.is_number() && std::isfinite(value.get<double>()) && in_range(param, value);
    case Param::Type::choice:
      return value.is_string() && std::find(param.choices.begin(), param.choices.end(),
                                            value.get<std::string>()) != param.choices.end();
    case Param::Type::text:
      return value.is_string();
  }
  return false;
}

}  // namespace

std::optional<std::string> check_value(const Param& param, const std::string& name,
                                       nlohmann::json& value) {
  if (fits(param, value)) {
    const bool real = param.type == Param::Type::real || param.type == Param::Type::optional_real;
    if (real && value.is_number()) value = value.get<double>();
    return std::nullopt;
  }
  const bool word = param.type == Param::Type::choice && value.is_string();
  return fmt::format("'{}' must be {}, found {}{}", name, expected(param), yaml::describe(value),
                     word ? did_you_mean(value.get<std::string>(), param.choices) : "");
}

}  // namespace kvlab::method
