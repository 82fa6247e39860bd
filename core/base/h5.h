#pragma once

#include <cstdint>
#include <filesystem>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

/// A thin layer over the HDF5 C library: files, groups, attributes and datasets by absolute path.
///
/// Every call takes one global mutex, so any number of threads may use it. Whatever goes wrong is
/// thrown as kvlab::Error in one sentence that names the file and the object; HDF5 itself prints
/// nothing.
namespace kvlab::h5 {

/// The mutex that every call takes. Hold it over several calls, or to be sure that no other thread
/// is within HDF5.
std::recursive_mutex& mutex();

/// "1.10.8": the HDF5 library in use.
std::string library_version();

/// What the elements of a dataset or attribute are.
struct Element {
  enum class Kind { real, integer, unsigned_integer, text, other };
  Kind kind = Kind::other;
  size_t bytes = 0;  // of one element; 0 for strings of variable length

  /// "float16", "int64", "uint16", "string" …; "other" for compounds, references and the like.
  std::string name() const;
  bool operator==(const Element&) const = default;
};

/// Element type and shape of a dataset or attribute; the shape of a single value is [].
struct Info {
  Element element;
  std::vector<int64_t> shape;
  uint64_t stored_bytes = 0;  // in the file, after compression; datasets only

  int64_t count() const;  // elements
};

/// A group or dataset.
struct Object {
  std::string path;
  bool is_group = false;
  bool has_attributes = false;
};

/// The elements of a dataset in this machine's byte order, in C order, without conversion; texts as
/// LENGTH:TEXT, one after the other.
struct Raw {
  Info info;
  std::string bytes;
};

/// An open file. Numbers are double, float, int64_t, int32_t, uint8_t or uint16_t; reading converts
/// between them. Small datasets lie within their header, larger ones are chunked, shuffled,
/// deflated and checksummed.
class File {
 public:
  /// Read-only. Errors: no such file, not HDF5, truncated, damaged so that HDF5 crashes on it,
  /// locked by another program.
  static File open(const std::filesystem::path& path);
  /// An existing file, to be changed. Messages call it `shown` where that is given: a temporary
  /// file goes by the name of the one that it will replace.
  static File edit(const std::filesystem::path& path, const std::filesystem::path& shown = {});
  /// A new file in place of whatever is there; `shown` as above.
  static File create(const std::filesystem::path& path, const std::filesystem::path& shown = {});

  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;
  File(const File&) = delete;
  ~File();  // closes without a word; call close() on a file that was written

  void close();
  void flush();
  const std::filesystem::path& path() const { return path_; }

  bool exists(const std::string& object) const;
  bool is_group(const std::string& object) const;
  /// Names within a group, sorted.
  std::vector<std::string> children(const std::string& group) const;
  /// Everything below a group, however deep, in order of the paths.
  std::vector<Object> objects_below(const std::string& group) const;
  /// Takes a group or dataset with all below it out of the file.
  void remove(const std::string& object);
  /// Makes a group and those above it; does nothing where it is there.
  void make_group(const std::string& group);
  /// Copies a group or dataset with all below it, from another open file.
  void copy_from(const File& source, const std::string& from, const std::string& to);

  bool has_attribute(const std::string& object, const std::string& name) const;
  std::vector<std::string> attribute_names(const std::string& object) const;
  void remove_attribute(const std::string& object, const std::string& name);
  Info attribute_info(const std::string& object, const std::string& name) const;
  void set_attribute(const std::string& object, const std::string& name, std::string_view value);
  void set_attribute(const std::string& object, const std::string& name, int64_t value);
  void set_attribute(const std::string& object, const std::string& name, double value);
  void set_attribute(const std::string& object, const std::string& name,
                     const std::vector<std::string>& values);
  void set_attribute(const std::string& object, const std::string& name,
                     const std::vector<int64_t>& values);
  void set_attribute(const std::string& object, const std::string& name,
                     const std::vector<double>& values);
  /// T: std::string, int64_t, double, or a vector of one of them. A number is no text and text no
  /// number: an error.
  template <class T>
  T attribute(const std::string& object, const std::string& name) const;
  template <class T>
  T attribute_or(const std::string& object, const std::string& name, T fallback) const {
    return has_attribute(object, name) ? attribute<T>(object, name) : std::move(fallback);
  }

  Info info(const std::string& dataset) const;

  /// Writes a new dataset (groups above it are made). `values` has as many elements as `shape`
  /// says.
  template <class T>
  void write(const std::string& dataset, const T* values, const std::vector<int64_t>& shape);
  template <class T>
  void write(const std::string& dataset, const std::vector<T>& values) {
    write(dataset, values.data(), {static_cast<int64_t>(values.size())});
  }
  /// IEEE half precision from its bits.
  void write_float16(const std::string& dataset, const uint16_t* bits,
                     const std::vector<int64_t>& shape);
  void write_text(const std::string& dataset, std::string_view text);
  void write_texts(const std::string& dataset, const std::vector<std::string>& texts);

  /// The whole dataset in C order.
  template <class T>
  std::vector<T> read(const std::string& dataset) const;
  Raw read_raw(const std::string& dataset) const;
  std::string read_text(const std::string& dataset) const;
  std::vector<std::string> read_texts(const std::string& dataset) const;
  /// The block of `count` elements from `start` on, one number a dimension, in C order.
  template <class T>
  void read_slice(const std::string& dataset, const std::vector<int64_t>& start,
                  const std::vector<int64_t>& count, T* out) const;
  /// The same without conversion: elements as stored, in this machine's byte order,
  /// info().element.bytes each.
  void read_slice_raw(const std::string& dataset, const std::vector<int64_t>& start,
                      const std::vector<int64_t>& count, void* out) const;

 private:
  File(int64_t id, std::filesystem::path path) : id_(id), path_(std::move(path)) {}
  [[noreturn]] void fail(const std::string& object, const std::string& what) const;
  [[noreturn]] void fail_to_open(const std::string& dataset) const;
  /// Throws for the system's error number of a write; 0 is none.
  void check_written(int error) const;
  void put(const std::string& dataset, int64_t type, const std::vector<int64_t>& shape,
           const void* values);

  int64_t id_ = -1;
  std::filesystem::path path_;
};

}  // namespace kvlab::h5
