#pragma once

#include <filesystem>
#include <string>

namespace kvlab::store {

/// The right to write one results file, held by one run at a time. The system takes it back when
/// the program ends, however that happens. Readers need none.
class RunLock {
 public:
  /// Makes the file's folder if needed. Throws Error where another run holds the lock (naming its
  /// process and host), or the folder cannot be written.
  explicit RunLock(const std::filesystem::path& results);
  RunLock(const RunLock&) = delete;
  ~RunLock();

  /// False on a file system that has no locks: then nothing keeps a second run out.
  bool is_effective() const { return effective_; }

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
  bool effective_ = true;
};

/// "process 4711 on host n12" where a run is writing this results file now; empty otherwise.
std::string running(const std::filesystem::path& results);

}  // namespace kvlab::store
