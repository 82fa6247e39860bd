#include <sys/resource.h>
#include <sys/wait.h>

#include <csignal>
#include <fstream>
#include <random>
#include <sstream>
#include <thread>

#include "catch.h"
#include "results_fixture.h"

namespace fs = std::filesystem;
using namespace kvlab;           // NOLINT(google-build-using-namespace)
using namespace kvlab::testing;  // NOLINT(google-build-using-namespace)

namespace {

std::string bytes_of(const fs::path& path) {
  std::ostringstream out;
  out << std::ifstream(path, std::ios::binary).rdbuf();
  return out.str();
}

int64_t complete(const fs::path& path) {
  const store::Results results = store::read_results(path);
  return std::count_if(results.rows.begin(), results.rows.end(), [&](const auto& row) {
    return store::state_of(results, row).status == "complete";
  });
}

/// Runs `work` in a child that is killed after `delay`; whether it was killed before it had ended.
template <class Work>
bool killed_after(std::chrono::microseconds delay, const Work& work) {
  const pid_t child = fork();
  if (child == 0) {
    work();
    _exit(0);
  }
  std::this_thread::sleep_for(delay);
  kill(child, SIGKILL);
  int status = 0;
  waitpid(child, &status, 0);
  return WIFSIGNALED(status);
}

}  // namespace

TEST_CASE("store: parts lie over the file and are folded in once", "[store]") {
  const Folder folder;
  const fs::path path = folder / "a.h5";
  store::update_results(path, make_results(4));
  CHECK(complete(path) == 0);
  store::write_part(path, make_cell(0));
  store::write_part(path, make_cell(2));
  CHECK(complete(path) == 2);
  CHECK(store::fold(path).folded == 2);
  CHECK_FALSE(fs::exists(store::parts_folder(path)));
  CHECK(complete(path) == 2);
  CHECK(store::verify_results(path).problems.empty());
  const std::string before = bytes_of(path);
  CHECK(store::fold(path).folded == 0);
  CHECK(bytes_of(path) == before);
  CHECK(store::read_results(path, store::Detail::full).cells.at(cell_id(2)).rotation.size() == 1);
}

TEST_CASE("store: a later part replaces an earlier result", "[store]") {
  const Folder folder;
  const fs::path path = folder / "a.h5";
  store::Results results = make_full_results(1);
  results.cells[cell_id(0)].status = "failed";
  results.cells[cell_id(0)].warnings = {"old"};
  store::write_results(path, results);
  store::write_part(path, make_cell(0));
  CHECK(complete(path) == 1);
  store::fold(path);
  CHECK(complete(path) == 1);
  const store::Results read = store::read_results(path);
  CHECK(store::warnings_of(read, read.rows[0]).empty());
}

TEST_CASE("store: torn and foreign parts are ignored and left alone", "[store]") {  // D88
  const Folder folder;
  const fs::path path = folder / "a.h5";
  const fs::path parts = store::parts_folder(path);
  store::update_results(path, make_results(4));
  for (int i = 0; i < 4; ++i) store::write_part(path, make_cell(i));
  const fs::path torn = parts / (cell_id(1) + ".h5");
  fs::resize_file(torn, fs::file_size(torn) - 100);
  fs::rename(parts / (cell_id(2) + ".h5"), parts / "renamed.h5");
  std::fstream flipped(parts / (cell_id(3) + ".h5"), std::ios::in | std::ios::out);
  flipped.seekp(500);
  flipped.put('?');
  flipped.close();
  std::ofstream(parts / "notes.txt") << "mine";
  std::ofstream(parts / ".x.h5.1-1.tmp") << "half";
  CHECK(complete(path) == 1);
  const store::FoldReport report = store::fold(path);
  CHECK(report.folded == 1);
  CHECK(report.ignored.size() == 4);
  CHECK(fs::exists(parts / "notes.txt"));
  CHECK_FALSE(fs::exists(parts / ".x.h5.1-1.tmp"));
  CHECK(complete(path) == 1);
  CHECK(store::verify_results(path).problems.size() == 4);
}

TEST_CASE("store: a new plan keeps cells, and only cells without results get stubs", "[store]") {
  const Folder folder;
  const fs::path path = folder / "a.h5";
  store::write_results(path, make_full_results(3));
  store::write_part(path, make_cell(7));
  store::Results plan = make_results(3);
  plan.rows.erase(plan.rows.begin());
  for (int i = 0; i < 3; ++i) {
    plan.cells[cell_id(i)] = make_cell(i);
    plan.cells[cell_id(i)].status = i == 2 ? "excluded" : "interrupted";
    plan.cells[cell_id(i)].reason = "planned";
  }
  store::update_results(path, plan);
  const store::Results read = store::read_results(path);
  CHECK(read.rows.size() == 2);
  CHECK(read.cells.size() == 4);
  CHECK(read.cells.at(cell_id(1)).status == "complete");
  CHECK(read.cells.at(cell_id(2)).status == "excluded");
  CHECK(read.cells.at(cell_id(7)).status == "complete");
  const store::Status status = store::status(path, "0123456789abcdef");
  CHECK(status.cells == 2);
  CHECK(status.cells_by_state == std::map<std::string, int64_t>{{"complete", 1}, {"excluded", 1}});
  CHECK(status.reasons == std::map<std::string, int64_t>{{"excluded: planned", 1}});
  REQUIRE(status.stale.size() == 2);
  CHECK(has(status.stale[0].reason, "no row"));
  const store::Status other = store::status(path, "fedcba9876543210");  // D100
  REQUIRE(other.stale.size() == 3);
  CHECK(has(other.stale[1].reason,
            "made by code version 0123456789abcdef, this program is fedcba9876543210"));
}

TEST_CASE("store: kill -9 while parts are written and folded, the file always opens", "[store]") {
  const Folder folder;  // D87 and D88
  const fs::path path = folder / "a.h5";
  store::update_results(path, make_results(12));
  std::mt19937 random(7);
  int64_t least = 0;
  int killed = 0;
  int next = 0;
  for (int round = 0; round < 100; ++round) {
    const std::chrono::microseconds delay(random() % 40000);
    killed += killed_after(delay, [&] {
      for (int i = 0; i < 12; ++i) {
        store::write_part(path, make_cell((next + i) % 12));
        if (i % 3 == 2) store::fold(path);
      }
    });
    next += 5;
    const int64_t found = complete(path);
    REQUIRE(found >= least);
    least = found;
    const store::Verification verification = store::verify_results(path);
    REQUIRE(verification.problems.empty());
  }
  CHECK(killed > 20);
  store::fold(path);
  CHECK(complete(path) == least);
  CHECK(std::distance(fs::directory_iterator(path.parent_path()), fs::directory_iterator()) == 1);
}

TEST_CASE("store: a full disk is one sentence and leaves nothing half-written", "[store]") {
  const Folder folder;
  const fs::path path = folder / "a.h5";
  store::write_results(path, make_full_results(2));
  const std::string before = bytes_of(path);
  const auto with_limit = [&](rlim_t bytes, const auto& work) {
    const pid_t child = fork();
    if (child == 0) {
      std::signal(SIGXFSZ, SIG_IGN);
      const rlimit limit{bytes, bytes};
      setrlimit(RLIMIT_FSIZE, &limit);
      const std::string text = message(work);
      // It names the file that was asked for, not the temporary one that is written.
      const bool named = text.starts_with(path.string() + ": ");
      std::exit(named && has(text, "File too large") && !has(text, "\n") ? 0 : 1);
    }
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
  };
  CHECK(with_limit(4096, [&] { store::write_results(path, make_full_results(40)); }));
  CHECK(with_limit(1000, [&] { store::write_part(path, make_cell(3)); }));
  CHECK(bytes_of(path) == before);
  CHECK(fs::is_empty(store::parts_folder(path)));
  CHECK(std::distance(fs::directory_iterator(path.parent_path()), fs::directory_iterator()) == 2);
}

TEST_CASE("store: threads may store parts at once", "[store]") {  // D91
  const Folder folder;
  const fs::path path = folder / "a.h5";
  store::update_results(path, make_results(20));
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = t; i < 20; i += 4) store::write_part(path, make_cell(i));
    });
  }
  for (int i = 0; i < 5; ++i) complete(path);
  for (std::thread& thread : threads) thread.join();
  CHECK(complete(path) == 20);
}
