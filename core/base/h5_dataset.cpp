#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/h5_driver.h"
#include "base/h5_handle.h"
#include "base/names.h"

namespace kvlab::h5 {
namespace {

/// Up to this size a dataset lies within its object header: one read, covered by the header's
/// checksum.
constexpr int64_t kCompactBytes = 16 << 10;
constexpr int64_t kChunkBytes = 1 << 20;

/// Chunks of about kChunkBytes that split the leading dimensions first, so that a slice of rows
/// reads few of them.
std::vector<hsize_t> chunk_shape(const std::vector<int64_t>& shape, size_t element_bytes) {
  std::vector<hsize_t> chunk(shape.begin(), shape.end());
  auto bytes = static_cast<hsize_t>(element_bytes);
  for (const hsize_t size : chunk) bytes *= size;
  for (hsize_t& size : chunk) {
    while (bytes > kChunkBytes && size > 1) {
      const hsize_t half = (size + 1) / 2;
      bytes = bytes / size * half;
      size = half;
    }
  }
  return chunk;
}

Handle dataset_properties(const std::vector<int64_t>& shape, hid_t type) {
  const size_t element_bytes = H5Tget_size(type);
  Handle properties(H5Pcreate(H5P_DATASET_CREATE), &H5Pclose);
  // Without times the same contents give the same bytes.
  H5Pset_obj_track_times(properties, false);
  H5Pset_attr_phase_change(properties, 100, 50);
  auto bytes = static_cast<int64_t>(element_bytes);
  for (const int64_t size : shape) bytes *= size;
  if (bytes == 0) return properties;
  if (bytes <= kCompactBytes) {
    H5Pset_layout(properties, H5D_COMPACT);
  } else if (!shape.empty()) {
    const std::vector<hsize_t> chunk = chunk_shape(shape, element_bytes);
    H5Pset_chunk(properties, static_cast<int>(chunk.size()), chunk.data());
    // Texts lie elsewhere in the file; HDF5 refuses checksums of references to them.
    if (H5Tis_variable_str(type) > 0) return properties;
    H5Pset_shuffle(properties);
    H5Pset_deflate(properties, 1);
    H5Pset_fletcher32(properties);
  }
  return properties;
}

/// Creates and fills a dataset; true where that worked.
bool write_dataset(hid_t file, const std::string& path, hid_t type,
                   const std::vector<int64_t>& shape, const void* values) {
  const Handle links(H5Pcreate(H5P_LINK_CREATE), &H5Pclose);
  H5Pset_create_intermediate_group(links, 1);
  const Handle space = make_space(shape);
  const Handle properties = dataset_properties(shape, type);
  const Handle made(H5Dcreate2(file, path.c_str(), type, space, links, properties, H5P_DEFAULT),
                    &H5Dclose);
  const bool empty = std::find(shape.begin(), shape.end(), 0) != shape.end();
  return made.ok() && (empty || H5Dwrite(made, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, values) >= 0);
}

Handle open_dataset(hid_t file, const std::string& path) {
  return Handle(H5Dopen2(file, path.c_str(), H5P_DEFAULT), &H5Dclose);
}

/// IEEE half precision, which HDF5 1.10 has no name for.
Handle half_type() {
  Handle type(H5Tcopy(H5T_NATIVE_FLOAT), &H5Tclose);
  H5Tset_fields(type, 15, 10, 5, 0, 10);
  H5Tset_size(type, 2);
  H5Tset_ebias(type, 15);
  return type;
}

Info info_of(hid_t dataset) {
  const Handle type(H5Dget_type(dataset), &H5Tclose);
  const Handle space(H5Dget_space(dataset), &H5Sclose);
  return {element_of(type), shape_of(space), H5Dget_storage_size(dataset)};
}

/// The stored type in this machine's byte order.
Handle raw_type(hid_t dataset) {
  const Handle stored(H5Dget_type(dataset), &H5Tclose);
  Handle type(H5Tcopy(stored), &H5Tclose);
  H5Tset_order(type, H5Tget_order(H5T_NATIVE_INT32));
  return type;
}

bool is_number(hid_t type) {
  const H5T_class_t kind = H5Tget_class(type);
  return kind == H5T_FLOAT || kind == H5T_INTEGER;
}

std::vector<std::string> texts_of(hid_t opened, const std::filesystem::path& file,
                                  const std::string& dataset) {
  const Handle type(H5Dget_type(opened), &H5Tclose);
  const Handle space(H5Dget_space(opened), &H5Sclose);
  std::vector<std::string> texts;
  const auto read = [&](hid_t t, void* buffer) {
    return H5Dread(opened, t, H5S_ALL, H5S_ALL, H5P_DEFAULT, buffer);
  };
  if (!read_strings(type, space, read, &texts)) {
    throw Error(fmt::format("{}: {} cannot be read: the file is damaged", file.string(), dataset));
  }
  return texts;
}

/// Reads a block into `out`; a message where that fails.
std::string read_block(hid_t dataset, hid_t memory_type, const std::vector<int64_t>& start,
                       const std::vector<int64_t>& count, void* out) {
  const Handle space(H5Dget_space(dataset), &H5Sclose);
  const std::vector<int64_t> shape = shape_of(space);
  if (start.size() != shape.size() || count.size() != shape.size()) {
    return fmt::format("has {}, a slice of {} was asked for",
                       counted(std::ssize(shape), "dimension"), start.size());
  }
  for (size_t i = 0; i < shape.size(); ++i) {
    if (start[i] < 0 || count[i] < 0 || start[i] + count[i] > shape[i]) {
      return fmt::format("has {} in dimension {}, a slice of [{}, {}) was asked for",
                         shape[i] == 1 ? "1 entry" : fmt::format("{} entries", shape[i]), i,
                         start[i], start[i] + count[i]);
    }
    if (count[i] == 0) return "";
  }
  const Handle block = make_space(count);
  if (!shape.empty()) {
    const std::vector<hsize_t> from(start.begin(), start.end());
    const std::vector<hsize_t> size(count.begin(), count.end());
    H5Sselect_hyperslab(space, H5S_SELECT_SET, from.data(), nullptr, size.data(), nullptr);
  }
  const herr_t status = H5Dread(dataset, memory_type, block, space, H5P_DEFAULT, out);
  return status < 0 ? "cannot be read: the file is damaged" : "";
}

}  // namespace

Info File::info(const std::string& dataset) const {
  Lock lock;
  const Handle opened = open_dataset(id_, dataset);
  if (!opened.ok()) fail_to_open(dataset);
  return info_of(opened);
}

void File::fail_to_open(const std::string& dataset) const {
  fail(dataset, exists(dataset) ? "is not a dataset that can be read" : "is missing");
}

void File::put(const std::string& dataset, int64_t type, const std::vector<int64_t>& shape,
               const void* values) {
  Lock lock;
  if (!write_dataset(id_, dataset, type, shape, values)) fail(dataset, "cannot be written");
  check_written(*write_error(id_));
}

template <class T>
void File::write(const std::string& dataset, const T* values, const std::vector<int64_t>& shape) {
  put(dataset, native_type<T>(), shape, values);
}

void File::write_float16(const std::string& dataset, const uint16_t* bits,
                         const std::vector<int64_t>& shape) {
  Lock lock;
  put(dataset, half_type(), shape, bits);
}

void File::write_text(const std::string& dataset, std::string_view text) {
  Lock lock;
  const std::string copy(text);
  const char* pointer = copy.c_str();
  put(dataset, text_type(), {}, &pointer);
}

void File::write_texts(const std::string& dataset, const std::vector<std::string>& texts) {
  Lock lock;
  std::vector<const char*> pointers;
  for (const std::string& text : texts) pointers.push_back(text.c_str());
  put(dataset, text_type(), {static_cast<int64_t>(texts.size())}, pointers.data());
}

template <class T>
std::vector<T> File::read(const std::string& dataset) const {
  Lock lock;
  const Info found = info(dataset);
  std::vector<T> values(static_cast<size_t>(found.count()));
  read_slice(dataset, std::vector<int64_t>(found.shape.size(), 0), found.shape, values.data());
  return values;
}

Raw File::read_raw(const std::string& dataset) const {
  Lock lock;
  const Handle opened = open_dataset(id_, dataset);
  if (!opened.ok()) fail_to_open(dataset);
  const Handle type(H5Dget_type(opened), &H5Tclose);
  Raw raw{info_of(opened), {}};
  if (raw.info.element.kind == Element::Kind::text) {
    for (const std::string& text : texts_of(opened, path_, dataset)) {
      raw.bytes += fmt::format("{}:{}", text.size(), text);
    }
    return raw;
  }
  if (!is_number(type)) {
    throw Error(fmt::format("{}: {} should hold numbers, found {}", path_.string(), dataset,
                            raw.info.element.name()));
  }
  raw.bytes.resize(static_cast<size_t>(raw.info.count()) * raw.info.element.bytes);
  const std::vector<int64_t> start(raw.info.shape.size(), 0);
  const std::string problem =
      read_block(opened, raw_type(opened), start, raw.info.shape, raw.bytes.data());
  if (!problem.empty()) fail(dataset, problem);
  return raw;
}

std::string File::read_text(const std::string& dataset) const {
  const std::vector<std::string> texts = read_texts(dataset);
  if (texts.size() != 1) fail(dataset, fmt::format("should be one string, found {}", texts.size()));
  return texts.front();
}

std::vector<std::string> File::read_texts(const std::string& dataset) const {
  Lock lock;
  const Handle opened = open_dataset(id_, dataset);
  if (!opened.ok()) fail_to_open(dataset);
  const Handle type(H5Dget_type(opened), &H5Tclose);
  if (H5Tget_class(type) != H5T_STRING) {
    throw Error(fmt::format("{}: {} should hold strings, found {}", path_.string(), dataset,
                            element_of(type).name()));
  }
  return texts_of(opened, path_, dataset);
}

template <class T>
void File::read_slice(const std::string& dataset, const std::vector<int64_t>& start,
                      const std::vector<int64_t>& count, T* out) const {
  Lock lock;
  const Handle opened = open_dataset(id_, dataset);
  if (!opened.ok()) fail_to_open(dataset);
  const Handle type(H5Dget_type(opened), &H5Tclose);
  if (!is_number(type)) {
    throw Error(fmt::format("{}: {} should hold numbers, found {}", path_.string(), dataset,
                            element_of(type).name()));
  }
  const std::string problem = read_block(opened, native_type<T>(), start, count, out);
  if (!problem.empty()) fail(dataset, problem);
}

void File::read_slice_raw(const std::string& dataset, const std::vector<int64_t>& start,
                          const std::vector<int64_t>& count, void* out) const {
  Lock lock;
  const Handle opened = open_dataset(id_, dataset);
  if (!opened.ok()) fail_to_open(dataset);
  const Handle stored(H5Dget_type(opened), &H5Tclose);
  if (!is_number(stored)) {
    throw Error(fmt::format("{}: {} should hold numbers, found {}", path_.string(), dataset,
                            element_of(stored).name()));
  }
  const std::string problem = read_block(opened, raw_type(opened), start, count, out);
  if (!problem.empty()) fail(dataset, problem);
}

#define KVLAB_H5_NUMBER(T)                                                              \
  template void File::write(const std::string&, const T*, const std::vector<int64_t>&); \
  template std::vector<T> File::read(const std::string&) const;                         \
  template void File::read_slice(const std::string&, const std::vector<int64_t>&,       \
                                 const std::vector<int64_t>&, T*) const;
KVLAB_H5_NUMBER(double)
KVLAB_H5_NUMBER(float)
KVLAB_H5_NUMBER(int64_t)
KVLAB_H5_NUMBER(int32_t)
KVLAB_H5_NUMBER(uint8_t)
KVLAB_H5_NUMBER(uint16_t)
#undef KVLAB_H5_NUMBER

}  // namespace kvlab::h5
