#include "base/h5.h"

#include <fmt/format.h>

#include <cstring>

#include "base/error.h"
#include "base/h5_driver.h"
#include "base/h5_handle.h"
#include "base/h5_probe.h"

namespace kvlab::h5 {
namespace {

Handle creation_properties() {
  Handle properties(H5Pcreate(H5P_FILE_CREATE), &H5Pclose);
  H5Pset_obj_track_times(properties, false);
  H5Pset_attr_phase_change(properties, 100, 50);
  return properties;
}

herr_t collect_name(hid_t, const char* name, const H5L_info_t*, void* out) {
  static_cast<std::vector<std::string>*>(out)->emplace_back(name);
  return 0;
}

/// What hinders opening a file, in a few words.
std::string why_not(const std::filesystem::path& path) {
  const std::string stack = error_stack();
  std::error_code error;
  if (!std::filesystem::exists(path, error)) {
    return error ? "cannot be opened: " + error.message() : "no such file";
  }
  if (std::filesystem::is_directory(path, error)) return "is a folder, not a file";
  if (stack.find("truncated file") != std::string::npos) {
    return "truncated: the file ends before its contents do, so it was not completely written or "
           "copied";
  }
  if (stack.find("unable to lock") != std::string::npos) {
    return "locked by another program that is writing it; try again when that has finished";
  }
  const std::string reason = system_reason();
  if (!reason.empty()) return "cannot be opened" + reason;
  return H5Fis_hdf5(path.c_str()) > 0 ? "damaged: HDF5 cannot open it" : "not an HDF5 file";
}

}  // namespace

/// File access: the 1.8 format has checksums on all metadata and compact headers, and is read by
/// every HDF5 since.
Handle access_properties() {
  Handle properties(H5Pcreate(H5P_FILE_ACCESS), &H5Pclose);
  H5Pset_libver_bounds(properties, H5F_LIBVER_V18, H5F_LIBVER_LATEST);
  // Some file systems have no locks; that is no reason to refuse a file.
  H5Pset_file_locking(properties, true, true);
  set_driver(properties);
  return properties;
}

std::string library_version() {
  const Lock lock;
  unsigned int major = 0;
  unsigned int minor = 0;
  unsigned int release = 0;
  H5get_libversion(&major, &minor, &release);
  return fmt::format("{}.{}.{}", major, minor, release);
}

std::recursive_mutex& mutex() {
  // Never destroyed: files may be closed while statics are.
  static auto* global = new std::recursive_mutex;
  return *global;
}

Lock::Lock() : guard_(mutex()) {
  static thread_local bool quiet = false;
  if (!quiet) {
    H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
    quiet = true;
  }
}

Handle::~Handle() {
  if (id_ < 0) return;
  if (H5Eget_num(H5E_DEFAULT) <= 0) {
    close_(id_);
    return;
  }
  // Closing clears the error stack, which whoever reports the failure still has to read.
  const hid_t stack = H5Eget_current_stack();
  close_(id_);
  H5Eset_current_stack(stack);
}

std::string error_stack() {
  std::string text;
  H5Ewalk2(
      H5E_DEFAULT, H5E_WALK_DOWNWARD,
      [](unsigned, const H5E_error2_t* error, void* out) -> herr_t {
        if (error->desc) static_cast<std::string*>(out)->append(error->desc).append("\n");
        return 0;
      },
      &text);
  return text;
}

std::string system_reason() {
  const std::string stack = error_stack();
  constexpr std::string_view mark = "error message = '";
  const size_t begin = stack.find(mark);
  if (begin == std::string::npos) return "";
  const size_t end = stack.find('\'', begin + mark.size());
  return ": " + stack.substr(begin + mark.size(), end - begin - mark.size());
}

namespace {

using Path = std::filesystem::path;

/// Pipes and devices may never end, and HDF5 looks at the end first.
void refuse_special(const Path& path) {
  std::error_code error;
  const auto kind = std::filesystem::status(path, error).type();
  using Type = std::filesystem::file_type;
  if (kind != Type::fifo && kind != Type::character && kind != Type::block && kind != Type::socket)
    return;
  throw Error(fmt::format("{}: is a pipe or a device, not a file", path.string()));
}

hid_t open_existing(const Path& path, const Path& shown, unsigned flags) {
  const Handle access = access_properties();
  const hid_t id = H5Fopen(path.c_str(), flags, access);
  if (id < 0) throw Error(fmt::format("{}: {}", shown.string(), why_not(path)));
  return id;
}

}  // namespace

File File::open(const std::filesystem::path& path) {
  Lock lock;
  refuse_special(path);
  probe(path);
  return File(open_existing(path, path, H5F_ACC_RDONLY), path);
}

File File::edit(const Path& path, const Path& shown) {
  Lock lock;
  const Path& name = shown.empty() ? path : shown;
  return File(open_existing(path, name, H5F_ACC_RDWR), name);
}

File File::create(const Path& path, const Path& shown) {
  Lock lock;
  const Path& name = shown.empty() ? path : shown;
  const Handle creation = creation_properties();
  const Handle access = access_properties();
  const hid_t id = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, creation, access);
  if (id < 0) throw Error(fmt::format("{}: cannot be created{}", name.string(), system_reason()));
  return File(id, name);
}

File::File(File&& other) noexcept
    : id_(std::exchange(other.id_, -1)), path_(std::move(other.path_)) {}

File& File::operator=(File&& other) noexcept {
  std::swap(id_, other.id_);
  std::swap(path_, other.path_);
  return *this;
}

File::~File() {
  if (id_ < 0) return;
  Lock lock;
  H5Fclose(id_);
}

void File::close() {
  if (id_ < 0) return;
  Lock lock;
  const WriteError error = write_error(id_);
  if (H5Fflush(id_, H5F_SCOPE_GLOBAL) < 0) fail("", "cannot be written");
  if (H5Fclose(std::exchange(id_, -1)) < 0) fail("", "cannot be closed");
  check_written(*error);
}

void File::flush() {
  Lock lock;
  if (H5Fflush(id_, H5F_SCOPE_GLOBAL) < 0) fail("", "cannot be written");
  check_written(*write_error(id_));
}

void File::check_written(int error) const {
  if (error == 0) return;
  throw Error(fmt::format("{}: cannot be written: {}", path_.string(), std::strerror(error)));
}

void File::fail(const std::string& object, const std::string& what) const {
  const std::string reason = system_reason();
  throw Error(
      fmt::format("{}: {}{}{}{}", path_.string(), object, object.empty() ? "" : " ", what, reason));
}

bool File::exists(const std::string& object) const {
  Lock lock;
  return object == "/" || (H5Lexists(id_, object.c_str(), H5P_DEFAULT) > 0 &&
                           H5Oexists_by_name(id_, object.c_str(), H5P_DEFAULT) > 0);
}

bool File::is_group(const std::string& object) const {
  Lock lock;
  const Handle opened(H5Oopen(id_, object.c_str(), H5P_DEFAULT), &H5Oclose);
  return opened.ok() && H5Iget_type(opened) == H5I_GROUP;
}

std::vector<std::string> File::children(const std::string& group) const {
  Lock lock;
  const Handle opened(H5Gopen2(id_, group.c_str(), H5P_DEFAULT), &H5Gclose);
  std::vector<std::string> names;
  if (!opened.ok() ||
      H5Literate(opened, H5_INDEX_NAME, H5_ITER_INC, nullptr, &collect_name, &names) < 0) {
    fail(group, "is not a group that can be read");
  }
  return names;
}

std::vector<Object> File::objects_below(const std::string& group) const {
  Lock lock;
  std::vector<Object> objects;
  const auto collect = [](hid_t, const char* name, const H5O_info_t* info, void* out) -> herr_t {
    if (std::string_view(name) == ".") return 0;
    static_cast<std::vector<Object>*>(out)->push_back(
        {name, info->type == H5O_TYPE_GROUP, info->num_attrs > 0});
    return 0;
  };
  if (H5Ovisit_by_name2(id_, group.c_str(), H5_INDEX_NAME, H5_ITER_INC, collect, &objects,
                        H5O_INFO_BASIC | H5O_INFO_NUM_ATTRS, H5P_DEFAULT) < 0) {
    fail(group, "is not a group that can be read");
  }
  const std::string prefix = group.ends_with('/') ? group : group + "/";
  for (Object& object : objects) object.path.insert(0, prefix);
  return objects;
}

void File::remove(const std::string& object) {
  Lock lock;
  if (H5Ldelete(id_, object.c_str(), H5P_DEFAULT) < 0) fail(object, "cannot be removed");
}

void File::make_group(const std::string& group) {
  Lock lock;
  if (group.empty() || exists(group)) return;
  const Handle links(H5Pcreate(H5P_LINK_CREATE), &H5Pclose);
  H5Pset_create_intermediate_group(links, 1);
  const Handle properties(H5Pcreate(H5P_GROUP_CREATE), &H5Pclose);
  // Links and attributes of a cell fit its header: a heap and a tree of their own would be larger
  // than the cell.
  H5Pset_obj_track_times(properties, false);
  H5Pset_link_phase_change(properties, 100, 50);
  H5Pset_attr_phase_change(properties, 100, 50);
  const Handle made(H5Gcreate2(id_, group.c_str(), links, properties, H5P_DEFAULT), &H5Gclose);
  if (!made.ok()) fail(group, "cannot be made");
}

void File::copy_from(const File& source, const std::string& from, const std::string& to) {
  Lock lock;
  const Handle links(H5Pcreate(H5P_LINK_CREATE), &H5Pclose);
  H5Pset_create_intermediate_group(links, 1);
  if (H5Ocopy(source.id_, from.c_str(), id_, to.c_str(), H5P_DEFAULT, links) < 0) {
    fail(to, fmt::format("cannot be copied from {}", source.path_.string()));
  }
  check_written(*write_error(id_));
}

}  // namespace kvlab::h5
