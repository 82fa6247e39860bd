#include <fmt/format.h>

#include "base/error.h"
#include "base/h5_handle.h"

namespace kvlab::h5 {
namespace {

Handle open_attribute(hid_t file, const std::string& object, const std::string& name) {
  return Handle(H5Aopen_by_name(file, object.c_str(), name.c_str(), H5P_DEFAULT, H5P_DEFAULT),
                &H5Aclose);
}

/// Writes an attribute in place of one of this name; true where that worked.
bool write_attribute(hid_t file, const std::string& object, const std::string& name, hid_t type,
                     const std::vector<int64_t>& shape, const void* values) {
  if (H5Aexists_by_name(file, object.c_str(), name.c_str(), H5P_DEFAULT) > 0) {
    H5Adelete_by_name(file, object.c_str(), name.c_str(), H5P_DEFAULT);
  }
  const Handle space = make_space(shape);
  const Handle made(H5Acreate_by_name(file, object.c_str(), name.c_str(), type, space, H5P_DEFAULT,
                                      H5P_DEFAULT, H5P_DEFAULT),
                    &H5Aclose);
  // An attribute without elements has nothing to write.
  return made.ok() && (values == nullptr || H5Awrite(made, type, values) >= 0);
}

std::string place(const std::string& object, const std::string& name) {
  return fmt::format("attribute '{}' of {}", name, object);
}

/// The elements of a numeric attribute; false where it is no number or cannot be read.
template <class T>
bool read_numbers(hid_t attribute, std::vector<T>* out) {
  const Handle type(H5Aget_type(attribute), &H5Tclose);
  const Handle space(H5Aget_space(attribute), &H5Sclose);
  const H5T_class_t kind = H5Tget_class(type);
  // h5py stores booleans as an enumeration of 8-bit integers.
  if (kind != H5T_FLOAT && kind != H5T_INTEGER && kind != H5T_ENUM) return false;
  const hssize_t count = H5Sget_simple_extent_npoints(space);
  out->resize(static_cast<size_t>(count < 0 ? 0 : count));
  if (out->empty()) return true;
  if (kind == H5T_ENUM) {
    const Handle base(H5Tget_super(type), &H5Tclose);
    if (H5Tget_size(base) != 1) return false;
    std::vector<int8_t> small(out->size());
    if (H5Aread(attribute, type, small.data()) < 0) return false;
    out->assign(small.begin(), small.end());
    return true;
  }
  return H5Aread(attribute, native_type<T>(), out->data()) >= 0;
}

bool read_list(hid_t attribute, std::vector<double>* out) { return read_numbers(attribute, out); }

bool read_list(hid_t attribute, std::vector<int64_t>* out) {
  const Handle type(H5Aget_type(attribute), &H5Tclose);
  return H5Tget_class(type) != H5T_FLOAT && read_numbers(attribute, out);
}

bool read_list(hid_t attribute, std::vector<std::string>* out) {
  const Handle type(H5Aget_type(attribute), &H5Tclose);
  const Handle space(H5Aget_space(attribute), &H5Sclose);
  if (H5Tget_class(type) != H5T_STRING) return false;
  return read_strings(
      type, space, [&](hid_t t, void* buffer) { return H5Aread(attribute, t, buffer); }, out);
}

template <class T>
struct ListOf {
  using Item = T;
  static constexpr bool is_list = false;
};
template <class T>
struct ListOf<std::vector<T>> {
  using Item = T;
  static constexpr bool is_list = true;
};

template <class T>
const char* word_for();
template <>
const char* word_for<std::string>() {
  return "text";
}
template <>
const char* word_for<int64_t>() {
  return "an integer";
}
template <>
const char* word_for<double>() {
  return "a number";
}

}  // namespace

bool File::has_attribute(const std::string& object, const std::string& name) const {
  Lock lock;
  return H5Aexists_by_name(id_, object.c_str(), name.c_str(), H5P_DEFAULT) > 0;
}

std::vector<std::string> File::attribute_names(const std::string& object) const {
  Lock lock;
  std::vector<std::string> names;
  const auto collect = [](hid_t, const char* name, const H5A_info_t*, void* out) -> herr_t {
    static_cast<std::vector<std::string>*>(out)->emplace_back(name);
    return 0;
  };
  if (H5Aiterate_by_name(id_, object.c_str(), H5_INDEX_NAME, H5_ITER_INC, nullptr, collect, &names,
                         H5P_DEFAULT) < 0) {
    fail(object, "has attributes that cannot be read");
  }
  return names;
}

void File::remove_attribute(const std::string& object, const std::string& name) {
  Lock lock;
  if (H5Adelete_by_name(id_, object.c_str(), name.c_str(), H5P_DEFAULT) < 0) {
    fail(place(object, name), "cannot be removed");
  }
}

Info File::attribute_info(const std::string& object, const std::string& name) const {
  Lock lock;
  const Handle attribute = open_attribute(id_, object, name);
  if (!attribute.ok()) fail(object, fmt::format("has no attribute '{}'", name));
  const Handle type(H5Aget_type(attribute), &H5Tclose);
  const Handle space(H5Aget_space(attribute), &H5Sclose);
  return {element_of(type), shape_of(space), 0};
}

void File::set_attribute(const std::string& object, const std::string& name,
                         std::string_view value) {
  Lock lock;
  const std::string text(value);
  const char* pointer = text.c_str();
  if (!write_attribute(id_, object, name, text_type(), {}, &pointer)) {
    fail(place(object, name), "cannot be written");
  }
}

void File::set_attribute(const std::string& object, const std::string& name, int64_t value) {
  Lock lock;
  if (!write_attribute(id_, object, name, H5T_NATIVE_INT64, {}, &value)) {
    fail(place(object, name), "cannot be written");
  }
}

void File::set_attribute(const std::string& object, const std::string& name, double value) {
  Lock lock;
  if (!write_attribute(id_, object, name, H5T_NATIVE_DOUBLE, {}, &value)) {
    fail(place(object, name), "cannot be written");
  }
}

void File::set_attribute(const std::string& object, const std::string& name,
                         const std::vector<std::string>& values) {
  Lock lock;
  std::vector<const char*> pointers;
  for (const std::string& value : values) pointers.push_back(value.c_str());
  if (!write_attribute(id_, object, name, text_type(), {static_cast<int64_t>(values.size())},
                       pointers.empty() ? nullptr : pointers.data())) {
    fail(place(object, name), "cannot be written");
  }
}

void File::set_attribute(const std::string& object, const std::string& name,
                         const std::vector<int64_t>& values) {
  Lock lock;
  if (!write_attribute(id_, object, name, H5T_NATIVE_INT64, {static_cast<int64_t>(values.size())},
                       values.empty() ? nullptr : values.data())) {
    fail(place(object, name), "cannot be written");
  }
}

void File::set_attribute(const std::string& object, const std::string& name,
                         const std::vector<double>& values) {
  Lock lock;
  if (!write_attribute(id_, object, name, H5T_NATIVE_DOUBLE, {static_cast<int64_t>(values.size())},
                       values.empty() ? nullptr : values.data())) {
    fail(place(object, name), "cannot be written");
  }
}

template <class T>
T File::attribute(const std::string& object, const std::string& name) const {
  Lock lock;
  using Item = typename ListOf<T>::Item;
  const Handle opened = open_attribute(id_, object, name);
  if (!opened.ok()) fail(object, fmt::format("has no attribute '{}'", name));
  std::vector<Item> items;
  if (!read_list(opened, &items)) {
    const Info found = attribute_info(object, name);
    throw Error(fmt::format("{}: {} should be {}, found {}", path_.string(), place(object, name),
                            word_for<Item>(), found.element.name()));
  }
  if constexpr (ListOf<T>::is_list) {
    return items;
  } else {
    if (items.size() != 1) {
      throw Error(fmt::format("{}: {} should be one value, found {}", path_.string(),
                              place(object, name), items.size()));
    }
    return items.front();
  }
}

template std::string File::attribute(const std::string&, const std::string&) const;
template int64_t File::attribute(const std::string&, const std::string&) const;
template double File::attribute(const std::string&, const std::string&) const;
template std::vector<std::string> File::attribute(const std::string&, const std::string&) const;
template std::vector<int64_t> File::attribute(const std::string&, const std::string&) const;
template std::vector<double> File::attribute(const std::string&, const std::string&) const;

}  // namespace kvlab::h5
