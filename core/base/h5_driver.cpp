#include "base/h5_driver.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <string>
#include <vector>

namespace kvlab::h5 {
namespace {

/// Bytes that could not be written.
struct Held {
  haddr_t begin = 0;
  std::string bytes;

  haddr_t end() const { return begin + bytes.size(); }
};

struct DriverFile {
  H5FD_t base = {};  // first, as HDF5 wants it
  H5FD_t* inner = nullptr;
  std::vector<Held> held;  // in the order of writing
  WriteError error = std::make_shared<int>(0);

  haddr_t held_end() const {
    haddr_t end = 0;
    for (const Held& one : held) end = std::max(end, one.end());
    return end;
  }
};

/// HDF5 calls the driver while it cleans up after a failure, and every call of its interface clears
/// the error stack, which whoever reports the failure still has to read.
class KeepErrors {
 public:
  KeepErrors() : stack_(H5Eget_num(H5E_DEFAULT) > 0 ? H5Eget_current_stack() : -1) {}
  KeepErrors(const KeepErrors&) = delete;
  ~KeepErrors() {
    if (stack_ >= 0) H5Eset_current_stack(stack_);
  }

 private:
  hid_t stack_;
};

DriverFile& of(H5FD_t* file) { return *reinterpret_cast<DriverFile*>(file); }
const DriverFile& of(const H5FD_t* file) { return *reinterpret_cast<const DriverFile*>(file); }

H5FD_t* open_file(const char* name, unsigned flags, hid_t access, haddr_t most) {
  const hid_t inner_access = H5Pcopy(access);
  H5Pset_fapl_sec2(inner_access);
  H5FD_t* inner = H5FDopen(name, flags, inner_access, most);
  {
    const KeepErrors keep;
    H5Pclose(inner_access);
  }
  if (inner == nullptr) return nullptr;
  auto* file = new DriverFile;
  file->inner = inner;
  return &file->base;
}

herr_t close_file(H5FD_t* file) {
  const KeepErrors keep;
  const std::unique_ptr<DriverFile> own(&of(file));
  return H5FDclose(own->inner);
}

herr_t write_bytes(H5FD_t* file, H5FD_mem_t type, hid_t transfer, haddr_t at, size_t size,
                   const void* bytes) {
  DriverFile& own = of(file);
  errno = 0;
  // Once a write failed nothing more is tried: what is held must not lie over what is newer.
  if (*own.error == 0 && H5FDwrite(own.inner, type, transfer, at, size, bytes) >= 0) return 0;
  if (*own.error == 0) *own.error = errno == 0 ? EIO : errno;
  own.held.push_back({at, std::string(static_cast<const char*>(bytes), size)});
  return 0;
}

herr_t read_bytes(H5FD_t* file, H5FD_mem_t type, hid_t transfer, haddr_t at, size_t size,
                  void* out) {
  const DriverFile& own = of(file);
  if (H5FDread(own.inner, type, transfer, at, size, out) < 0) return -1;
  for (const Held& one : own.held) {
    const haddr_t begin = std::max(one.begin, at);
    const haddr_t end = std::min<haddr_t>(one.end(), at + size);
    if (begin >= end) continue;
    std::memcpy(static_cast<char*>(out) + (begin - at), one.bytes.data() + (begin - one.begin),
                end - begin);
  }
  return 0;
}

herr_t truncate_file(H5FD_t* file, hid_t transfer, hbool_t closing) {
  const KeepErrors keep;
  const DriverFile& own = of(file);
  if (*own.error != 0) return 0;
  errno = 0;
  if (H5FDtruncate(own.inner, transfer, closing) < 0) *own.error = errno == 0 ? EIO : errno;
  return 0;
}

hid_t make_driver() {
  // HDF5 keeps the address.
  static H5FD_class_t driver = {};
  driver.name = "kvlab";
  driver.maxaddr = static_cast<haddr_t>(INT64_MAX);
  driver.fc_degree = H5F_CLOSE_WEAK;
  driver.open = &open_file;
  driver.close = &close_file;
  driver.read = &read_bytes;
  driver.write = &write_bytes;
  driver.truncate = &truncate_file;
  driver.cmp = [](const H5FD_t* a, const H5FD_t* b) { return H5FDcmp(of(a).inner, of(b).inner); };
  driver.query = [](const H5FD_t* file, unsigned long* flags) -> herr_t {
    *flags = H5FD_FEAT_DEFAULT_VFD_COMPATIBLE;
    const int known = file == nullptr ? 0 : H5FDquery(of(file).inner, flags);
    *flags &=
        ~static_cast<unsigned long>(H5FD_FEAT_POSIX_COMPAT_HANDLE);  // get_handle gives another
    return known < 0 ? -1 : 0;
  };
  driver.get_eoa = [](const H5FD_t* file, H5FD_mem_t type) {
    return H5FDget_eoa(of(file).inner, type);
  };
  driver.set_eoa = [](H5FD_t* file, H5FD_mem_t type, haddr_t end) {
    return H5FDset_eoa(of(file).inner, type, end);
  };
  driver.get_eof = [](const H5FD_t* file, H5FD_mem_t type) {
    return std::max(H5FDget_eof(of(file).inner, type), of(file).held_end());
  };
  driver.get_handle = [](H5FD_t* file, hid_t, void** handle) -> herr_t {
    *handle = &of(file).error;
    return 0;
  };
  driver.flush = [](H5FD_t* file, hid_t transfer, hbool_t closing) {
    const KeepErrors keep;
    return H5FDflush(of(file).inner, transfer, closing);
  };
  driver.lock = [](H5FD_t* file, hbool_t writing) { return H5FDlock(of(file).inner, writing); };
  driver.unlock = [](H5FD_t* file) {
    const KeepErrors keep;
    return H5FDunlock(of(file).inner);
  };
  constexpr H5FD_mem_t kinds[] = H5FD_FLMAP_DICHOTOMY;
  std::copy(std::begin(kinds), std::end(kinds), driver.fl_map);
  return H5FDregister(&driver);
}

}  // namespace

void set_driver(hid_t access) {
  static const hid_t driver = make_driver();
  H5Pset_driver(access, driver, nullptr);
}

WriteError write_error(hid_t file) {
  void* handle = nullptr;
  H5Fget_vfd_handle(file, H5P_DEFAULT, &handle);
  return *static_cast<WriteError*>(handle);
}

}  // namespace kvlab::h5
