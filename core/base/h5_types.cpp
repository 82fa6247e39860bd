#include <fmt/format.h>

#include "base/h5_handle.h"

namespace kvlab::h5 {

std::string Element::name() const {
  switch (kind) {
    case Kind::real:
      return fmt::format("float{}", 8 * bytes);
    case Kind::integer:
      return fmt::format("int{}", 8 * bytes);
    case Kind::unsigned_integer:
      return fmt::format("uint{}", 8 * bytes);
    case Kind::text:
      return "string";
    case Kind::other:
      break;
  }
  return "other";
}

int64_t Info::count() const {
  int64_t product = 1;
  for (const int64_t size : shape) product *= size;
  return product;
}

Element element_of(hid_t type) {
  const size_t bytes = H5Tget_size(type);
  switch (H5Tget_class(type)) {
    case H5T_FLOAT:
      return {Element::Kind::real, bytes};
    case H5T_INTEGER:
      return {H5Tget_sign(type) == H5T_SGN_NONE ? Element::Kind::unsigned_integer
                                                : Element::Kind::integer,
              bytes};
    case H5T_STRING:
      return {Element::Kind::text, H5Tis_variable_str(type) > 0 ? 0 : bytes};
    default:
      return {Element::Kind::other, bytes};
  }
}

std::vector<int64_t> shape_of(hid_t space) {
  const int rank = H5Sget_simple_extent_ndims(space);
  if (H5Sget_simple_extent_type(space) == H5S_NULL) return {0};
  std::vector<hsize_t> sizes(static_cast<size_t>(rank < 0 ? 0 : rank));
  H5Sget_simple_extent_dims(space, sizes.data(), nullptr);
  return {sizes.begin(), sizes.end()};
}

Handle make_space(const std::vector<int64_t>& shape) {
  if (shape.empty()) return Handle(H5Screate(H5S_SCALAR), &H5Sclose);
  const std::vector<hsize_t> sizes(shape.begin(), shape.end());
  return Handle(H5Screate_simple(static_cast<int>(sizes.size()), sizes.data(), nullptr), &H5Sclose);
}

Handle text_type() {
  Handle type(H5Tcopy(H5T_C_S1), &H5Tclose);
  H5Tset_size(type, H5T_VARIABLE);
  H5Tset_cset(type, H5T_CSET_UTF8);
  return type;
}

}  // namespace kvlab::h5
