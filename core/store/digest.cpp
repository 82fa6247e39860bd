#include "store/digest.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstring>

#include "base/hash.h"

namespace kvlab::store {
namespace {

constexpr const char* kSeal = "sha256";

void add_texts(const std::vector<std::string>& texts, std::string* out) {
  for (const std::string& text : texts) *out += fmt::format("{}:{}", text.size(), text);
}

template <class T>
void add_numbers(const std::vector<T>& numbers, std::string* out) {
  out->append(reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(T));
}

std::string heading(const std::string& name, const h5::Info& info) {
  return fmt::format("{} {} [{}]\n", name, info.element.name(), fmt::join(info.shape, ","));
}

std::string attribute_digest(const h5::File& file, const std::string& object,
                             const std::string& name) {
  const h5::Info info = file.attribute_info(object, name);
  std::string bytes = heading(name, info);
  if (info.element.kind == h5::Element::Kind::text) {
    add_texts(file.attribute<std::vector<std::string>>(object, name), &bytes);
  } else if (info.element.kind == h5::Element::Kind::real) {
    add_numbers(file.attribute<std::vector<double>>(object, name), &bytes);
  } else {
    add_numbers(file.attribute<std::vector<int64_t>>(object, name), &bytes);
  }
  return sha256(bytes);
}

std::string dataset_digest(const h5::File& file, const std::string& path) {
  const h5::Info info = file.info(path);
  std::string bytes = heading("", info);
  if (info.element.kind == h5::Element::Kind::text) {
    add_texts(file.read_texts(path), &bytes);
  } else {
    const size_t begin = bytes.size();
    bytes.resize(begin + static_cast<size_t>(info.count()) * info.element.bytes);
    file.read_slice_raw(path, std::vector<int64_t>(info.shape.size(), 0), info.shape,
                        bytes.data() + begin);
  }
  return sha256(bytes);
}

}  // namespace

std::string digest(const h5::File& file, const std::string& group) {
  std::string lines;
  for (const std::string& name : file.attribute_names(group)) {
    if (name != kSeal) lines += attribute_digest(file, group, name) + "\n";
  }
  for (const std::string& name : file.children(group)) {
    const std::string path = group + "/" + name;
    const bool is_group = file.is_group(path);
    lines +=
        fmt::format("{} {}\n", name, is_group ? digest(file, path) : dataset_digest(file, path));
    if (is_group) continue;
    for (const std::string& attribute : file.attribute_names(path)) {
      lines += attribute_digest(file, path, attribute) + "\n";
    }
  }
  return sha256(lines);
}

void seal(h5::File& file, const std::string& group) {
  file.set_attribute(group, kSeal, digest(file, group));
}

bool is_intact(const h5::File& file, const std::string& group) {
  return file.attribute_or<std::string>(group, kSeal, "") == digest(file, group);
}

}  // namespace kvlab::store
