#include "report/text_width.h"

#include <algorithm>
#include <iterator>

namespace kvlab::report {
namespace {

struct Range {
  uint32_t first, last;
};

constexpr Range kNoColumn[] = {
    {0x0300, 0x036F}, {0x0483, 0x0489}, {0x1AB0, 0x1AFF}, {0x1DC0, 0x1DFF}, {0x200B, 0x200F},
    {0x2060, 0x2064}, {0x20D0, 0x20FF}, {0xFE00, 0xFE0F}, {0xFE20, 0xFE2F}, {0xFEFF, 0xFEFF}};
constexpr Range kTwoColumns[] = {{0x1100, 0x115F},   {0x2E80, 0x303E},  {0x3041, 0xA4CF},
                                 {0xAC00, 0xD7A3},   {0xF900, 0xFAFF},  {0xFE30, 0xFE6F},
                                 {0xFF00, 0xFF60},   {0xFFE0, 0xFFE6},  {0x1F300, 0x1F64F},
                                 {0x1F900, 0x1F9FF}, {0x20000, 0x3FFFD}};

bool within(const auto& ranges, uint32_t code) {
  return std::any_of(std::begin(ranges), std::end(ranges), [code](const Range& range) {
    return range.first <= code && code <= range.last;
  });
}

}  // namespace

uint32_t next_code(std::string_view text, size_t* at) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(*at);
  const size_t length = lead < 0x80             ? 1
                        : (lead & 0xE0) == 0xC0 ? 2
                        : (lead & 0xF0) == 0xE0 ? 3
                        : (lead & 0xF8) == 0xF0 ? 4
                                                : 1;
  uint32_t code = length == 1 ? lead : lead & (0xFFU >> (length + 1));
  size_t end = *at + 1;
  while (end < std::min(*at + length, text.size()) && (byte(end) & 0xC0) == 0x80) {
    code = code << 6 | (byte(end) & 0x3FU);
    ++end;
  }
  *at = end;
  return code;
}

size_t display_width(std::string_view text) {
  size_t width = 0;
  for (size_t at = 0; at < text.size();) {
    const uint32_t code = next_code(text, &at);
    if (!within(kNoColumn, code)) width += within(kTwoColumns, code) ? 2 : 1;
  }
  return width;
}

std::string padded(const std::string& text, size_t width, Align align) {
  const size_t used = display_width(text);
  const std::string space(width > used ? width - used : 0, ' ');
  return align == Align::left ? text + space : space + text;
}

std::string one_line(std::string_view text) {
  std::string line;
  for (const char c : text) {
    const bool control = static_cast<unsigned char>(c) < 0x20 || c == 0x7F;
    if (!control) {
      line += c;
    } else if (!line.empty() && line.back() != ' ') {
      line += ' ';
    }
  }
  while (!line.empty() && line.back() == ' ') line.pop_back();
  return line;
}

}  // namespace kvlab::report
