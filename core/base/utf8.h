#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace kvlab {

/// Where the text stops being UTF-8 (RFC 3629: no overlong forms, no surrogates); nothing where all
/// of it is.
std::optional<size_t> first_invalid_utf8(std::string_view text);

/// A text of a foreign file as a message can show it: control characters and what is not UTF-8
/// become '?', what follows the first 80 bytes "…".
std::string readable(std::string_view text);

/// JSON as text. Names of files and strings of foreign files may be any bytes: what is not UTF-8
/// becomes U+FFFD.
template <class Json>
std::string json_text(const Json& value, int indent = -1) {
  return value.dump(indent, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

}  // namespace kvlab
