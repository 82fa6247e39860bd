#include "base/h5_probe.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <compare>
#include <csignal>
#include <limits>
#include <optional>
#include <set>
#include <vector>

#include "base/error.h"
#include "base/h5_handle.h"

namespace kvlab::h5 {
namespace {

/// One object should take microseconds of computing, and seconds where a disk is slow.
constexpr rlim_t kSecondsAnObject = 4;
#ifdef __SANITIZE_ADDRESS__
// Its allocator, unlike the system's, leaves locks of other threads held in a forked process: such
// a walk never goes on, and tests need not wait long for it.
constexpr unsigned kSlowestSecondsAnObject = 5;
#else
constexpr unsigned kSlowestSecondsAnObject = 60;
#endif
/// Arrays up to this size are read.
constexpr hsize_t kSmallBytes = 1 << 20;
/// No object takes fewer bytes of a file: a walk over more of them goes round in circles.
constexpr uint64_t kFewestBytesAnObject = 8;

/// How the process of its own ends where it does not crash.
constexpr int kSound = 0;
constexpr int kUnreadable = 3;

/// What tells one state of a file from another.
struct State {
  dev_t device;
  ino_t file;
  off_t bytes;
  time_t seconds;
  long nanoseconds;
  auto operator<=>(const State&) const = default;
};

std::optional<State> state_of(const std::filesystem::path& path) {
  struct stat found = {};
  if (stat(path.c_str(), &found) != 0 || !S_ISREG(found.st_mode)) return std::nullopt;
  return State{found.st_dev, found.st_ino, found.st_size, found.st_mtim.tv_sec,
               found.st_mtim.tv_nsec};
}

/// States found sound; the global mutex guards it.
std::set<State>& sound() {
  static auto* states = new std::set<State>;
  return *states;
}

/// Computing time from now on, after which the system ends this process. It ends as well where it
/// only waits: a copy of a process of many threads may find a lock held that nobody will open.
void allow_seconds(rlim_t seconds) {
  alarm(kSlowestSecondsAnObject);
  rusage used = {};
  getrusage(RUSAGE_SELF, &used);
  const auto spent = static_cast<rlim_t>(used.ru_utime.tv_sec + used.ru_stime.tv_sec);
  const rlimit limit = {spent + seconds, RLIM_INFINITY};
  setrlimit(RLIMIT_CPU, &limit);
}

/// What the readers read; anything else they leave alone.
bool is_number_or_enum(hid_t type) {
  const H5T_class_t kind = H5Tget_class(type);
  return kind == H5T_FLOAT || kind == H5T_INTEGER || kind == H5T_ENUM;
}

hsize_t bytes_of(hid_t type, hid_t space) {
  const auto count = static_cast<hsize_t>(std::max<hssize_t>(0, H5Sget_select_npoints(space)));
  const auto size = static_cast<hsize_t>(H5Tget_size(type));
  return size > 0 && count > std::numeric_limits<hsize_t>::max() / size
             ? std::numeric_limits<hsize_t>::max()
             : count * size;
}

herr_t read_attribute(hid_t object, const char* name, const H5A_info_t*, void*) {
  const Handle attribute(H5Aopen(object, name, H5P_DEFAULT), &H5Aclose);
  if (!attribute.ok()) return -1;
  const Handle type(H5Aget_type(attribute), &H5Tclose);
  const Handle space(H5Aget_space(attribute), &H5Sclose);
  const auto read = [&](hid_t t, void* out) { return H5Aread(attribute, t, out); };
  if (H5Tget_class(type) == H5T_STRING) {
    std::vector<std::string> texts;
    return read_strings(type, space, read, &texts) ? 0 : -1;
  }
  const hsize_t bytes = bytes_of(type, space);
  if (!is_number_or_enum(type) || bytes == 0 || bytes > kSmallBytes) return 0;
  std::vector<char> values(bytes);
  return read(type, values.data()) < 0 ? -1 : 0;
}

/// The first element, so that one chunk goes through its filters.
void read_one(hid_t dataset, hid_t type, hid_t space) {
  const auto rank = static_cast<size_t>(std::max(0, H5Sget_simple_extent_ndims(space)));
  if (rank > 0) {
    const std::vector<hsize_t> start(rank, 0);
    const std::vector<hsize_t> count(rank, 1);
    H5Sselect_hyperslab(space, H5S_SELECT_SET, start.data(), nullptr, count.data(), nullptr);
  }
  std::vector<char> bytes(H5Tget_size(type));
  H5Dread(dataset, type, make_space({}), space, H5P_DEFAULT, bytes.data());
}

/// Failures are left to the reader: a filter may be missing here, a checksum may be wrong.
void read_dataset(hid_t dataset) {
  const Handle type(H5Dget_type(dataset), &H5Tclose);
  const Handle space(H5Dget_space(dataset), &H5Sclose);
  const auto read = [&](hid_t t, void* out) {
    return H5Dread(dataset, t, H5S_ALL, H5S_ALL, H5P_DEFAULT, out);
  };
  hsize_t chunks = 0;
  H5Dget_num_chunks(dataset, space, &chunks);
  const hsize_t bytes = bytes_of(type, space);
  if (H5Tget_class(type) == H5T_STRING) {
    std::vector<std::string> texts;
    read_strings(type, space, read, &texts);
  } else if (is_number_or_enum(type) && bytes > kSmallBytes) {
    read_one(dataset, type, space);
  } else if (is_number_or_enum(type) && bytes > 0) {
    std::vector<char> values(bytes);
    read(type, values.data());
  }
}

/// Counts down the objects that a file of this size may hold.
herr_t visit(hid_t file, const char* name, const H5O_info_t* info, void* left) {
  allow_seconds(kSecondsAnObject);
  if ((*static_cast<uint64_t*>(left))-- == 0) raise(SIGXCPU);
  const Handle object(H5Oopen(file, name, H5P_DEFAULT), &H5Oclose);
  if (!object.ok() ||
      H5Aiterate2(object, H5_INDEX_NAME, H5_ITER_INC, nullptr, &read_attribute, nullptr) < 0) {
    return -1;
  }
  if (info->type == H5O_TYPE_DATASET) read_dataset(object);
  return 0;
}

/// In the process of its own; never returns.
[[noreturn]] void walk(const std::filesystem::path& path, uint64_t bytes) {
  const int silence = open("/dev/null", O_RDWR);
  dup2(silence, STDOUT_FILENO);
  dup2(silence, STDERR_FILENO);
  const rlimit no_core = {0, 0};
  setrlimit(RLIMIT_CORE, &no_core);
  for (const int signal : {SIGXCPU, SIGALRM}) std::signal(signal, SIG_DFL);
  allow_seconds(kSecondsAnObject);
  int result = kSound;
  try {
    const hid_t file = H5Fopen(path.c_str(), H5F_ACC_RDONLY, access_properties());
    uint64_t left = bytes / kFewestBytesAnObject;
    if (file >= 0) {
      const herr_t walked = H5Ovisit2(file, H5_INDEX_NAME, H5_ITER_INC, &visit, &left,
                                      H5O_INFO_BASIC | H5O_INFO_NUM_ATTRS);
      if (walked < 0) result = kUnreadable;
      H5Fclose(file);
    }
  } catch (const std::exception&) {
    result = kUnreadable;  // a size that no memory holds
  }
  _exit(result);
}

}  // namespace

void probe(const std::filesystem::path& path) {
  const Lock lock;  // this thread alone is within HDF5, and the copy of it finds no half-done call
  const auto state = state_of(path);
  if (!state || sound().contains(*state)) return;
  const auto bytes = static_cast<uint64_t>(state->bytes);
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(kSound);
    walk(path, bytes);
  }
  if (child < 0) return;  // no process to be had: better read without a net than not at all
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == kSound) {
    sound().insert(*state);
    return;
  }
  const int signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  if (signal == SIGALRM)
    return;  // it waited for something: no fault of the file, so read it without a net
  if (signal == SIGKILL) throw Error(fmt::format("{}: reading it was killed", path.string()));
  const bool unreadable = WIFEXITED(status) && WEXITSTATUS(status) == kUnreadable;
  throw Error(fmt::format("{}: damaged: HDF5 {}", path.string(),
                          unreadable          ? "cannot read all that is in it"
                          : signal == SIGXCPU ? "does not come to an end reading it"
                                              : "crashes reading it"));
}

void trust(const std::filesystem::path& path) {
  const Lock lock;
  if (const auto state = state_of(path)) sound().insert(*state);
}

}  // namespace kvlab::h5
