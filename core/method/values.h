#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "base/part.h"

namespace kvlab::method {

/// Checks a value against its parameter and brings it to the stored form (a whole number given for
/// a real becomes a real). `name` is the key as the user wrote it. Returns what is wrong with it,
/// nothing where it is right.
std::optional<std::string> check_value(const Param& param, const std::string& name,
                                       nlohmann::json& value);

}  // namespace kvlab::method
