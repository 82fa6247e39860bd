#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace kvlab::yaml {

/// A plain (unquoted) scalar by the YAML 1.2 core schema: bool, int64, double, string, or null for
/// the words that mean nothing. `yes` and `1_0` are strings, `.96` is a number; an integer beyond
/// int64 becomes a double.
nlohmann::json typed_scalar(const std::string& text);

}  // namespace kvlab::yaml
