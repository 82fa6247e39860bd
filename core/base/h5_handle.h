#pragma once

#include <hdf5.h>

#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/h5.h"

/// Shared by the h5*.cpp files and included by no others.
namespace kvlab::h5 {

/// The global mutex, held; HDF5 prints no errors meanwhile (a setting that it keeps per thread).
class Lock {
 public:
  Lock();

 private:
  std::lock_guard<std::recursive_mutex> guard_;
};

/// An HDF5 identifier that is closed once. A negative one means that the call which made it failed.
class Handle {
 public:
  Handle(hid_t id, herr_t (*close)(hid_t)) : id_(id), close_(close) {}
  Handle(Handle&& other) noexcept : id_(std::exchange(other.id_, -1)), close_(other.close_) {}
  Handle& operator=(Handle&&) = delete;
  ~Handle();
  operator hid_t() const { return id_; }  // NOLINT(google-explicit-constructor)
  bool ok() const { return id_ >= 0; }

 private:
  hid_t id_;
  herr_t (*close_)(hid_t);
};

/// How every file is opened.
Handle access_properties();

/// All messages on HDF5's error stack, the innermost last.
std::string error_stack();

/// ": No space left on device" where the operating system gave a reason; empty otherwise.
std::string system_reason();

Element element_of(hid_t type);
std::vector<int64_t> shape_of(hid_t space);

/// A dataspace of this shape; [] is a single value.
Handle make_space(const std::vector<int64_t>& shape);

/// UTF-8 of variable length.
Handle text_type();

template <class T>
hid_t native_type();
template <>
inline hid_t native_type<double>() {
  return H5T_NATIVE_DOUBLE;
}
template <>
inline hid_t native_type<float>() {
  return H5T_NATIVE_FLOAT;
}
template <>
inline hid_t native_type<int64_t>() {
  return H5T_NATIVE_INT64;
}
template <>
inline hid_t native_type<int32_t>() {
  return H5T_NATIVE_INT32;
}
template <>
inline hid_t native_type<uint8_t>() {
  return H5T_NATIVE_UINT8;
}
template <>
inline hid_t native_type<uint16_t>() {
  return H5T_NATIVE_UINT16;
}

/// The strings that `read(type, buffer)` delivers for a string type of fixed or variable length.
template <class Read>
bool read_strings(hid_t type, hid_t space, const Read& read, std::vector<std::string>* out) {
  const hssize_t points = H5Sget_simple_extent_npoints(space);
  const auto count = static_cast<size_t>(points < 0 ? 0 : points);
  out->clear();
  if (count == 0) return points >= 0;
  if (H5Tis_variable_str(type) > 0) {
    std::vector<char*> pointers(count, nullptr);
    if (read(type, static_cast<void*>(pointers.data())) < 0) return false;
    for (const char* pointer : pointers) out->emplace_back(pointer ? pointer : "");
    H5Dvlen_reclaim(type, space, H5P_DEFAULT, pointers.data());
    return true;
  }
  const size_t size = H5Tget_size(type);
  std::string bytes(count * size, '\0');
  if (read(type, static_cast<void*>(bytes.data())) < 0) return false;
  for (size_t i = 0; i < count; ++i) {
    const std::string_view field = std::string_view(bytes).substr(i * size, size);
    out->emplace_back(field.substr(0, field.find('\0')));
  }
  return true;
}

}  // namespace kvlab::h5
