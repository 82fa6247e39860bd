#include "base/utf8.h"

#include <cstdint>

namespace kvlab {
namespace {

/// Bytes of the character at `at`, 0 where there is none.
size_t character_length(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = byte(at);
  if (lead < 0x80) return 1;
  const size_t length = lead < 0xC2 ? 0 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : lead < 0xF5 ? 4 : 0;
  if (length == 0 || at + length > text.size()) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(at + i) & 0xC0) != 0x80) return 0;
  }
  // Overlong forms, surrogates, and what lies beyond U+10FFFF.
  const uint8_t second = byte(at + 1);
  const bool is_wrong = (lead == 0xE0 && second < 0xA0) || (lead == 0xED && second > 0x9F) ||
                        (lead == 0xF0 && second < 0x90) || (lead == 0xF4 && second > 0x8F);
  return is_wrong ? 0 : length;
}

}  // namespace

std::optional<size_t> first_invalid_utf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const size_t length = character_length(text, at);
    if (length == 0) return at;
    at += length;
  }
  return std::nullopt;
}

std::string readable(std::string_view text) {
  constexpr size_t kMost = 80;
  std::string shown;
  for (size_t at = 0; at < text.size();) {
    if (shown.size() >= kMost) return shown + "…";
    const size_t length = character_length(text, at);
    const auto byte = static_cast<uint8_t>(text[at]);
    const bool plain = length > 1 || (length == 1 && byte >= 0x20 && byte != 0x7F);
    shown += plain ? text.substr(at, length) : "?";
    at += plain ? length : 1;
  }
  return shown;
}

}  // namespace kvlab
