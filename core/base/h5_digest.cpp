#include "base/h5_digest.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstring>

#include "base/hash.h"

namespace kvlab::h5 {
namespace {

constexpr const char* kSeal = "sha256";

void add_texts(const std::vector<std::string>& texts, std::string* out) {
  for (const std::string& text : texts) *out += fmt::format("{}:{}", text.size(), text);
}

template <class T>
void add_numbers(const std::vector<T>& numbers, std::string* out) {
  out->append(reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(T));
}

std::string heading(const std::string& name, const Info& info) {
  return fmt::format("{} {} [{}]\n", name, info.element.name(), fmt::join(info.shape, ","));
}

std::string attribute_digest(const File& file, const std::string& object, const std::string& name) {
  const Info info = file.attribute_info(object, name);
  std::string bytes = heading(name, info);
  if (info.element.kind == Element::Kind::text) {
    add_texts(file.attribute<std::vector<std::string>>(object, name), &bytes);
  } else if (info.element.kind == Element::Kind::real) {
    add_numbers(file.attribute<std::vector<double>>(object, name), &bytes);
  } else {
    add_numbers(file.attribute<std::vector<int64_t>>(object, name), &bytes);
  }
  return sha256(bytes);
}

std::string dataset_digest(const File& file, const std::string& path) {
  const Raw raw = file.read_raw(path);
  return sha256(heading("", raw.info) + raw.bytes);
}

}  // namespace

std::string digest(const File& file, const std::string& group) {
  std::string lines;
  const auto add_attributes = [&](const std::string& object) {
    for (const std::string& name : file.attribute_names(object)) {
      if (object == group && name == kSeal) continue;
      lines += attribute_digest(file, object, name) + "\n";
    }
  };
  add_attributes(group);
  for (const Object& object : file.objects_below(group)) {
    lines += object.path.substr(group.size());
    lines += object.is_group ? "\n" : " " + dataset_digest(file, object.path) + "\n";
    if (object.has_attributes) add_attributes(object.path);
  }
  return sha256(lines);
}

void seal(File& file, const std::string& group) {
  file.set_attribute(group, kSeal, digest(file, group));
}

bool is_sealed(const File& file, const std::string& group) {
  return !file.attribute_or<std::string>(group, kSeal, "").empty();
}

bool is_intact(const File& file, const std::string& group) {
  return file.attribute_or<std::string>(group, kSeal, "") == digest(file, group);
}

}  // namespace kvlab::h5
