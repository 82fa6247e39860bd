// Whole experiments as a user runs them: the operation `experiment`.

#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <atomic>
#include <fstream>

#include "base/error.h"
#include "config/experiment.h"
#include "config/plan.h"
#include "method/recipe.h"
#include "run/describe.h"
#include "run/runner.h"
#include "samples.h"
#include "scratch.h"

namespace kvlab::bench {
namespace {

class Silent final : public run::Observer {
 public:
  void started(int64_t, int64_t, int64_t jobs) override { jobs_ = jobs; }
  void finished_cell(const config::Cell&, const std::string&, const std::string&,
                     double seconds) override {
    cell_seconds_ += seconds;
  }
  void learning(const config::Cell&, int64_t, int64_t) override {}
  void warning(const std::string&) override {}

  double cell_seconds() const { return cell_seconds_; }
  int64_t jobs() const { return jobs_; }

 private:
  double cell_seconds_ = 0;
  int64_t jobs_ = 1;
};

struct Finished {
  double seconds = 0;
  double cell_seconds = 0;
  int64_t jobs = 1;
  run::Outcome outcome;
};

Finished run_once(const std::filesystem::path& file, const std::vector<std::string>& edits,
                  const std::filesystem::path& output, const run::Options& options = {}) {
  const auto begin = std::chrono::steady_clock::now();
  config::Experiment experiment = config::load(file, edits);
  experiment.output = output;
  const config::Plan plan = run::make_plan(experiment);
  Silent observer;
  const std::atomic<bool> never{false};
  Finished finished;
  finished.outcome = run::run(experiment, plan, options, observer, never);
  finished.seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  finished.cell_seconds = observer.cell_seconds();
  finished.jobs = observer.jobs();
  return finished;
}

void report(benchmark::State& state, const Finished& finished) {
  keep_sample(1e9 * finished.seconds);
  state.SetIterationTime(finished.seconds);
  const auto cells = static_cast<double>(finished.outcome.complete);
  state.counters["cells"] = cells;
  state.counters["failed"] = static_cast<double>(finished.outcome.failed);
  state.counters["cells_per_second"] = cells / finished.seconds;
  // 1.0: the jobs did nothing but compute cells.
  state.counters["wall_x_jobs_over_cells"] =
      finished.seconds * static_cast<double>(finished.jobs) / finished.cell_seconds;
  if (!finished.outcome.broken.empty()) state.SkipWithError(finished.outcome.broken.c_str());
  if (finished.outcome.failed > 0) state.SkipWithError("cells failed");
}

std::filesystem::path shipped(const std::string& name) {
  return std::filesystem::path(KVLAB_SOURCE_DIR) / "experiments" / name;
}

/// A shipped experiment; `warm` runs it once before, so that its calibrations are stored.
void experiment(benchmark::State& state, const std::string& name, bool warm) {
  try {
    for ([[maybe_unused]] auto _ : state) {
      const Scratch scratch;
      if (warm) run_once(shipped(name), {}, scratch / "first.h5");
      report(state, run_once(shipped(name), {}, scratch / "out.h5"));
    }
  } catch (const Error& error) {
    state.SkipWithError(error.what());
  }
}

/// One layer of `tokens` tokens × 8 KV heads × d = 128: time and memory above what the program held
/// before. Both with what calibration takes.
void layer(benchmark::State& state, const std::string& method, int tokens) {
  const Scratch scratch;
  const std::string data =
      "source: synthetic, pattern: mean_dominated, kv_heads: 8, q_heads: 32, head_dim: 128";
  // The shortest calibration set that no row warns of: half the length.
  std::ofstream(scratch / "layer.yaml") << fmt::format(
      "schema: 1\nname: layer\ndataset: {{{}, tokens: {}}}\n"
      "calibration: {{{}, tokens: {}, passage: 1}}\nmethods: [{}]\n",
      data, tokens, data, tokens / 2, method);
  // Keys, values and 64 queries a head in bf16.
  const double input = 2.0 * (2.0 * tokens * 8 * 128 + 64 * 32 * 128);
  for ([[maybe_unused]] auto _ : state) {
    const int64_t before = resident_bytes();
    reset_peak();
    report(state,
           run_once(scratch / "layer.yaml", {}, scratch / "out.h5", {.rerun = true, .argv = ""}));
    state.counters["memory_over_input"] = static_cast<double>(peak_bytes() - before) / input;
  }
}

/// A sweep of 100 cells, and the same cells as 100 experiments of one cell: sharing must pay.
void sharing(benchmark::State& state) {
  const Scratch scratch;
  const auto write = [&](const std::string& name, int window, int group) {
    std::ofstream(scratch / name) << fmt::format(
        "schema: 1\nname: sharing\n"
        "dataset: {{source: synthetic, pattern: low_norm_sink, tokens: 2048, kv_heads: 4, q_heads: "
        "16, head_dim: 128}}\n"
        "methods: [kcvt_base, hadamard, oscar_ots, quarot_token, quarot_windows]\n"
        "sweep: {{grid: {{group: [{}], window.recent: [{}]}}}}\n",
        group > 0 ? std::to_string(group) : "16, 32, 64, 128",
        window > 0 ? std::to_string(window) : "128, 256, 384, 512, 640");
  };
  write("all.yaml", 0, 0);
  for ([[maybe_unused]] auto _ : state) {
    const Finished together =
        run_once(scratch / "all.yaml", {}, scratch / "all.h5", {.rerun = true, .argv = ""});
    double apart = 0;
    for (const int group : {16, 32, 64, 128}) {
      for (const int window : {128, 256, 384, 512, 640}) {
        write("one.yaml", window, group);
        for (const char* method :
             {"kcvt_base", "hadamard", "oscar_ots", "quarot_token", "quarot_windows"}) {
          apart += run_once(scratch / "one.yaml", {}, scratch / "one.h5",
                            {.only = {method}, .rerun = true, .argv = ""})
                       .seconds;
        }
      }
    }
    report(state, together);
    state.counters["over_one_by_one"] = together.seconds / apart;
  }
}

void add(const std::string& name, const auto& function) {
  const std::string text = "experiment/backend:reference/" + name;
  benchmark::RegisterBenchmark(text.c_str(),
                               [text, function](benchmark::State& state) {
                                 begin_samples(text);
                                 function(state);
                               })
      ->UseManualTime()
      ->Iterations(1)
      ->Unit(benchmark::kSecond);
}

}  // namespace

void register_experiments() {
  add("name:demo/cache:cold",
      [](benchmark::State& state) { experiment(state, "demo.yaml", false); });
  add("name:demo/cache:hot", [](benchmark::State& state) { experiment(state, "demo.yaml", true); });
  add("name:group_window",
      [](benchmark::State& state) { experiment(state, "sweeps/group_window.yaml", false); });
  for (const char* method : {"kivi", "oscar_ots", "quarot_windows", "oscar_cov"}) {
    add(fmt::format("name:{}/tokens:32768/heads:32x8/dim:128", method),
        [method](benchmark::State& state) { layer(state, method, 32768); });
  }
  for (const std::string& method : method::method_ids()) {
    add(fmt::format("name:{}/tokens:8192/heads:32x8/dim:128", method),
        [method](benchmark::State& state) { layer(state, method, 8192); });
  }
  add("name:sharing", sharing);
}

}  // namespace kvlab::bench
