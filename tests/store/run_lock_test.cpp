#include "store/run_lock.h"

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>

#include "catch.h"
#include "results_fixture.h"

namespace fs = std::filesystem;
using namespace kvlab;           // NOLINT(google-build-using-namespace)
using namespace kvlab::testing;  // NOLINT(google-build-using-namespace)

TEST_CASE("lock: a second run on one output is told who holds it", "[store]") {  // D89
  const Folder folder;
  const fs::path path = folder / "sub/folder/a.h5";
  CHECK(store::running(path).empty());
  {
    const store::RunLock lock(path);
    CHECK(lock.is_effective());
    const std::string holder = "process " + std::to_string(getpid()) + " on host ";
    CHECK(has(message([&] { const store::RunLock second(path); }),
              "a.h5: another run is writing it"));
    CHECK(has(message([&] { const store::RunLock second(path); }), holder));
    CHECK(has(store::running(path), holder));
    CHECK_NOTHROW(store::RunLock(folder / "sub/folder/b.h5"));
  }
  CHECK(store::running(path).empty());
  CHECK_NOTHROW(store::RunLock(path));
  CHECK(fs::is_empty(path.parent_path()));
}

TEST_CASE("lock: kill -9 frees it", "[store]") {
  const Folder folder;
  const fs::path path = folder / "a.h5";
  int ready[2];
  REQUIRE(pipe(ready) == 0);
  const pid_t child = fork();
  if (child == 0) {
    const store::RunLock lock(path);
    if (write(ready[1], "x", 1) == 1) pause();
    _exit(1);
  }
  char byte = 0;
  REQUIRE(read(ready[0], &byte, 1) == 1);
  CHECK(has(message([&] { const store::RunLock lock(path); }),
            "process " + std::to_string(child) + " on host"));
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  CHECK(store::running(path).empty());
  CHECK_NOTHROW(store::RunLock(path));
}

TEST_CASE("lock: a folder that cannot be written is one sentence", "[store]") {
  const Folder folder;
  std::ofstream(folder / "file") << "";
  CHECK(has(message([&] { const store::RunLock lock(folder / "file/a.h5"); }),
            "file/a.h5: its folder cannot be made: Not a directory"));
  if (geteuid() != 0) {  // root may write anywhere
    fs::create_directory(folder / "closed");
    fs::permissions(folder / "closed", fs::perms::owner_read | fs::perms::owner_exec);
    CHECK(has(message([&] { const store::RunLock lock(folder / "closed/a.h5"); }),
              "its folder cannot be written: Permission denied"));
    CHECK(has(message([&] { store::write_results(folder / "closed/a.h5", make_full_results(1)); }),
              "Permission denied"));
  }
}
