#include "cli/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>

#include "base/names.h"

namespace kvlab::cli {
namespace {

using Clock = std::chrono::steady_clock;

class Progress final : public run::Observer {
 public:
  Progress(bool terminal, bool quiet) : terminal_(terminal && !quiet), quiet_(quiet) {}

  ~Progress() override { clear(); }

  void started(int64_t all, int64_t done, int64_t jobs) override {
    all_ = all;
    to_do_ = all - done;
    begin_ = Clock::now();
    if (quiet_) return;
    if (done > 0)
      fmt::print(stderr, "{} of {} {} complete already\n", done, counted(all, "cell"),
                 done == 1 ? "is" : "are");
    if (to_do_ > 0) fmt::print(stderr, "running {}, {} at a time\n", counted(to_do_, "cell"), jobs);
  }

  void finished_cell(const config::Cell& cell, const std::string& status, const std::string& reason,
                     double seconds) override {
    ++finished_;
    if (status == "failed") {
      line(fmt::format("failed: {}: {}", name_of(cell), reason));
    } else if (!terminal_ && !quiet_) {
      fmt::print(stderr, "[{}/{}] {} {}{} ({:.2f} s)\n", finished_, to_do_, name_of(cell), status,
                 reason.empty() ? "" : ": " + reason, seconds);
    }
    if (terminal_) draw("");
  }

  void learning(const config::Cell& cell, int64_t done, int64_t all) override {
    if (terminal_) draw(fmt::format(" learning {} {}/{}", name_of(cell), done, all));
  }

  void warning(const std::string& message) override { line("warning: " + message); }

 private:
  void line(const std::string& text) {
    clear();
    fmt::print(stderr, "{}\n", text);
  }

  void clear() {
    if (terminal_ && drawn_) fmt::print(stderr, "\r\033[K");
    drawn_ = false;
  }

  void draw(const std::string& what) {
    const double seconds = std::chrono::duration<double>(Clock::now() - begin_).count();
    const double rate = finished_ > 0 ? static_cast<double>(finished_) / seconds : 0.0;
    const double share =
        to_do_ > 0 ? static_cast<double>(finished_) / static_cast<double>(to_do_) : 1.0;
    const auto full = static_cast<size_t>(std::lround(share * 24));
    const std::string left =
        rate > 0 ? duration(static_cast<double>(to_do_ - finished_) / rate) + " left" : "";
    fmt::print(stderr, "\r\033[K[{}{}] {}/{}  {:.1f} cells/s  {}{}", std::string(full, '#'),
               std::string(24 - full, '.'), finished_, to_do_, rate, left, what);
    std::fflush(stderr);
    drawn_ = true;
  }

  bool terminal_;
  bool quiet_;
  bool drawn_ = false;
  int64_t all_ = 0, to_do_ = 0, finished_ = 0;
  Clock::time_point begin_ = Clock::now();
};

}  // namespace

std::unique_ptr<run::Observer> make_progress(bool quiet) {
  return std::make_unique<Progress>(::isatty(STDERR_FILENO) != 0, quiet);
}

std::string duration(double seconds) {
  if (seconds < 10) return fmt::format("{:.1f} s", seconds);
  const auto whole = static_cast<int64_t>(std::lround(seconds));
  if (whole < 60) return fmt::format("{} s", whole);
  if (whole < 3600) return fmt::format("{} min {:02d} s", whole / 60, whole % 60);
  return fmt::format("{} h {:02d} min", whole / 3600, whole / 60 % 60);
}

std::string name_of(const config::Cell& cell) {
  std::string text = fmt::format("{} layer {}, {}", cell.dataset.label, cell.layer,
                                 cell.config["method"]["label"].get<std::string>());
  const auto add = [&](const std::string& key, const nlohmann::json& value) {
    text +=
        fmt::format(", {} {}", key, value.is_string() ? value.get<std::string>() : value.dump());
  };
  for (const auto& [axis, value] : cell.config["sweep"].items()) add(axis, value);
  if (cell.config["seed_used"].get<bool>()) add("seed", cell.seed);
  return text;
}

}  // namespace kvlab::cli
