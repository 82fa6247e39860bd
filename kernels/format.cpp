#include "kvlab/kernels/format.h"

#include <stdexcept>
#include <string_view>
#include <vector>

namespace kvlab::kernels {
namespace {

struct Word {
  const char* text;
  int value;
};

constexpr Word kTypes[] = {{"f32", static_cast<int>(Type::f32)},
                           {"f16", static_cast<int>(Type::f16)},
                           {"bf16", static_cast<int>(Type::bf16)}};
constexpr Word kAxes[] = {{"token", static_cast<int>(Axis::token)},
                          {"channel", static_cast<int>(Axis::channel)}};
constexpr Word kZeros[] = {{"none", static_cast<int>(Zero::none)},
                           {"value", static_cast<int>(Zero::value)},
                           {"offset", static_cast<int>(Zero::offset)},
                           {"codebook", static_cast<int>(Zero::codebook)}};
constexpr Word kNorms[] = {{"none", static_cast<int>(Norm::none)},
                           {"head", static_cast<int>(Norm::head)},
                           {"heads", static_cast<int>(Norm::heads)}};

template <class Table, class Value>
std::string text_of(const Table& table, Value value) {
  for (const Word& word : table) {
    if (word.value == static_cast<int>(value)) return word.text;
  }
  return "?";
}

template <class Value, class Table>
bool find(const Table& table, std::string_view text, Value& value) {
  for (const Word& word : table) {
    if (text != word.text) continue;
    value = static_cast<Value>(word.value);
    return true;
  }
  return false;
}

std::optional<std::string> refusal_of(const char* name, const SideFormat& side, int dim) {
  const std::string start = std::string(name) + ": ";
  if (side.bits != 2 && side.bits != 4 && side.bits != 8) {
    return start + std::to_string(side.bits) + " bits have no kernel, 2, 4 and 8 have";
  }
  if (side.group != 32 && side.group != 64 && side.group != 128) {
    return start + "groups of " + std::to_string(side.group) +
           " have no kernel, of 32, 64 and 128 have";
  }
  if (side.axis == Axis::token && side.group > dim) {
    return start + "a group of " + std::to_string(side.group) +
           " channels does not fit a head of " + std::to_string(dim);
  }
  if (side.zero == Zero::codebook && side.bits != 2) {
    return start + "a codebook of " + std::to_string(side.bits) +
           " bits has no kernel, one of 2 has";
  }
  return {};
}

std::string name_of(const SideFormat& side) {
  std::string name = text_of(kAxes, side.axis) + ",g" + std::to_string(side.group) + ",b" +
                     std::to_string(side.bits);
  if (side.zero != Zero::value) name += "," + text_of(kZeros, side.zero);
  if (side.params != Type::f16) name += "," + text_of(kTypes, side.params);
  return name;
}

std::vector<std::string_view> split(std::string_view text, char at) {
  std::vector<std::string_view> parts;
  for (;;) {
    const size_t end = text.find(at);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

[[noreturn]] void wrong(std::string_view part, const std::string& name) {
  throw std::invalid_argument("'" + std::string(part) + "' in the format '" + name +
                              "' is not known; a format is f1, f2 or of the form "
                              "k:channel,g64,b4;v:token,g64,b4");
}

bool read_number(std::string_view text, char letter, int& number) {
  if (text.size() < 2 || text.size() > 5 || text[0] != letter) return false;
  int read = 0;
  for (const char digit : text.substr(1)) {
    if (digit < '0' || digit > '9') return false;
    read = 10 * read + (digit - '0');
  }
  number = read;
  return true;
}

void read_side(std::string_view text, const std::string& name, SideFormat& side) {
  for (const std::string_view word : split(text, ',')) {
    if (!find(kAxes, word, side.axis) && !find(kZeros, word, side.zero) &&
        !find(kTypes, word, side.params) && !read_number(word, 'g', side.group) &&
        !read_number(word, 'b', side.bits)) {
      wrong(word, name);
    }
  }
}

void read_norm(std::string_view text, const std::string& name, Format& format) {
  for (const std::string_view word : split(text, ',')) {
    if (word == "inverse") {
      format.norm_inverse = true;
    } else if (!find(kNorms, word, format.norm) && !find(kTypes, word, format.norm_type)) {
      wrong(word, name);
    }
  }
}

}  // namespace

std::optional<std::string> refusal(const Format& format) {
  if (format.dim != 64 && format.dim != 128 && format.dim != 256) {
    return "a head of " + std::to_string(format.dim) +
           " channels has no kernel, one of 64, 128 and 256 has";
  }
  if (auto why = refusal_of("keys", format.key, format.dim)) return why;
  if (auto why = refusal_of("values", format.value, format.dim)) return why;
  if (format.value.axis == Axis::channel) return "values: per-channel groups have no kernel";
  if (format.window == Type::f32) return "a window of f32 has no kernel, one of f16 and bf16 has";
  return {};
}

std::string name_of(const Format& format) {
  if (format == f1(format.dim)) return "f1";
  if (format == f2(format.dim)) return "f2";
  std::string name = "k:" + name_of(format.key) + ";v:" + name_of(format.value);
  if (format.norm != Norm::none) {
    name += ";norm:" + text_of(kNorms, format.norm);
    if (format.norm_type != Type::f16) name += "," + text_of(kTypes, format.norm_type);
    if (format.norm_inverse) name += ",inverse";
  }
  if (format.window != Type::bf16) name += ";window:" + text_of(kTypes, format.window);
  return name;
}

Format format_named(const std::string& name, int dim) {
  if (name == "f1") return f1(dim);
  if (name == "f2") return f2(dim);
  Format format;
  format.dim = dim;
  bool key = false;
  bool value = false;
  for (const std::string_view part : split(name, ';')) {
    if (part.starts_with("k:")) {
      read_side(part.substr(2), name, format.key);
      key = true;
    } else if (part.starts_with("v:")) {
      read_side(part.substr(2), name, format.value);
      value = true;
    } else if (part.starts_with("norm:")) {
      read_norm(part.substr(5), name, format);
    } else if (!part.starts_with("window:") || !find(kTypes, part.substr(7), format.window)) {
      wrong(part, name);
    }
  }
  if (!key || !value) wrong(key ? "(no v:)" : "(no k:)", name);
  return format;
}

}  // namespace kvlab::kernels
