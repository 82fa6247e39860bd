#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/names.h"
#include "base/output_file.h"
#include "base/utf8.h"
#include "cli/progress.h"
#include "cli/verbs.h"
#include "config/experiment.h"
#include "run/describe.h"
#include "run/estimate.h"
#include "run/provenance.h"
#include "run/runner.h"

namespace kvlab::cli {
namespace {

std::atomic<bool> stop_asked{false};

/// What goes on where an interrupted run stopped. With --rerun the same command starts over.
std::atomic<bool> is_rerun{false};
constexpr std::string_view kGoesOn = "the same command goes on from here";
constexpr std::string_view kGoesOnWithoutRerun =
    "the same command without --rerun goes on from here";
std::string_view how_to_go_on() { return is_rerun ? kGoesOnWithoutRerun : kGoesOn; }

/// The first signal asks for an orderly end, the second leaves at once.
extern "C" void on_signal(int) {
  if (!stop_asked.exchange(true)) return;
  for (const std::string_view text :
       {std::string_view("\nkvlab: left at once; "), how_to_go_on(), std::string_view("\n")}) {
    [[maybe_unused]] const auto written = write(STDERR_FILENO, text.data(), text.size());
  }
  std::_Exit(Exit::interrupted);
}

struct RunArguments {
  std::string file;
  std::vector<std::string> edits;
  std::string out, backend, shard;
  bool has_out = false;
  int64_t jobs = 0;
  std::vector<std::string> only;
  bool dry_run = false, rerun = false, no_progress = false, json = false;
};

/// "I/N" with 1 ≤ I ≤ N.
void parse_shard(const std::string& text, run::Options& options) {
  const size_t slash = text.find('/');
  const auto number = [&](std::string_view part) {
    int64_t value = 0;
    const auto parsed = std::from_chars(part.data(), part.data() + part.size(), value);
    const bool whole = parsed.ec == std::errc() && parsed.ptr == part.data() + part.size();
    return whole ? value : -1;
  };
  const std::string_view view = text;
  const int64_t index = slash == std::string::npos ? -1 : number(view.substr(0, slash));
  const int64_t count = slash == std::string::npos ? -1 : number(view.substr(slash + 1));
  if (index < 1 || count < index) {
    throw Error(fmt::format("--shard: expected I/N with 1 ≤ I ≤ N, found '{}'", text));
  }
  options.shard = index;
  options.shards = count;
}

config::Plan plan_of(const config::Experiment& experiment) {
  config::Plan plan = run::make_plan(experiment);
  for (const std::string& warning : plan.warnings) {
    fmt::print(stderr, "kvlab: warning: {}\n", warning);
  }
  return plan;
}

/// What a run would do with a cell: compute it, or what it says of it without.
std::string state_of(const config::Cell& cell, const std::set<std::string>& stored) {
  switch (cell.state) {
    case config::CellState::unsupported:
      return "unsupported";
    case config::CellState::excluded:
      return "excluded";
    case config::CellState::run:
      break;
  }
  return stored.contains(cell.id) ? "stored" : "run";
}

void print_dry_run(const config::Experiment& experiment, const config::Plan& plan,
                   const run::Options& options, bool json) {
  const std::vector<size_t> cells = run::selected(plan, options);
  const std::set<std::string> stored = run::stored(experiment, plan, options);
  const std::set<size_t> chosen(cells.begin(), cells.end());
  const auto rows = std::count_if(plan.rows.begin(), plan.rows.end(), [&](const config::Row& row) {
    return chosen.contains(row.cell);
  });
  std::vector<size_t> left;
  std::copy_if(cells.begin(), cells.end(), std::back_inserter(left),
               [&](size_t index) { return !stored.contains(plan.cells[index].id); });
  const run::Estimate estimate = run::estimate(plan, left, options);
  if (json) {
    nlohmann::json list = nlohmann::json::array();
    for (const size_t index : cells) {
      const config::Cell& cell = plan.cells[index];
      list.push_back({{"id", cell.id},
                      {"state", state_of(cell, stored)},
                      {"reason", cell.reason},
                      {"config", cell.config}});
    }
    const nlohmann::json all = {{"cells", list},
                                {"rows", rows},
                                {"estimated_seconds", estimate.seconds},
                                {"estimated_bytes", estimate.bytes}};
    fmt::print("{}\n", json_text(all, 2));
    return;
  }
  for (const size_t index : cells) {
    const config::Cell& cell = plan.cells[index];
    fmt::print("{}  {:<11}  {}, window {}{}\n", cell.id.substr(0, 12), state_of(cell, stored),
               name_of(cell),
               cell.config["method"].value("window", nlohmann::json::object()).dump(),
               cell.reason.empty() ? "" : "  (" + cell.reason + ")");
  }
  fmt::print("{}, {}; about {} and {:.1f} MB of results to come (estimates)\n",
             counted(std::ssize(cells), "cell"), counted(rows, "row"), duration(estimate.seconds),
             static_cast<double>(estimate.bytes) / 1e6);
}

void print_outcome(const run::Outcome& outcome, const std::filesystem::path& output, double seconds,
                   bool json) {
  if (json) {
    const nlohmann::json all = {{"output", output.string()},
                                {"complete", outcome.complete},
                                {"reused", outcome.reused},
                                {"failed", outcome.failed},
                                {"unsupported", outcome.unsupported},
                                {"excluded", outcome.excluded},
                                {"left", outcome.left},
                                {"interrupted", outcome.interrupted},
                                {"reasons", outcome.reasons},
                                {"seconds", seconds}};
    fmt::print("{}\n", json_text(all, 2));
    return;
  }
  std::string text = fmt::format("{} complete", counted(outcome.complete, "cell"));
  if (outcome.reused > 0) text += fmt::format(" ({} from an earlier run)", outcome.reused);
  const auto also = [&](int64_t count, const char* what) {
    if (count > 0) text += fmt::format(", {} {}", count, what);
  };
  also(outcome.failed, "failed");
  also(outcome.unsupported, "unsupported");
  also(outcome.excluded, "excluded");
  also(outcome.left, "left to do");
  fmt::print("{} in {}: {}\n", text, duration(seconds), output.string());
  if (outcome.interrupted) fmt::print("interrupted; {}\n", how_to_go_on());
}

/// Why nothing came out of a run, a line a reason.
void print_why_nothing_ran(const run::Outcome& outcome) {
  fmt::print(stderr, "kvlab: nothing could run:\n");
  for (const auto& [reason, cells] : outcome.reasons) {
    fmt::print(stderr, "kvlab: {} {}\n", counted(cells, "cell"), reason);
  }
}

/// What was asked for is done where something came out of it; a shard may be left with cells that
/// cannot be had, since others have the rest.
int exit_code(const run::Outcome& outcome, const run::Options& options) {
  if (outcome.failed > 0 || !outcome.broken.empty()) return Exit::some_failed;
  const bool nothing = outcome.complete == 0 && outcome.unsupported > 0 && options.shards == 1;
  return nothing ? Exit::wrong_input : Exit::done;
}

void execute(const RunArguments& arguments, Exit& result) {
  const auto begin = std::chrono::steady_clock::now();
  std::vector<std::string> edits = arguments.edits;
  if (!arguments.backend.empty()) edits.push_back("backend=" + arguments.backend);
  config::Experiment experiment = run::load(arguments.file, edits);
  if (arguments.has_out) experiment.output = arguments.out;
  check_names_file(experiment.output);  // before anything is made
  const config::Plan plan = plan_of(experiment);
  run::Options options;
  options.jobs = arguments.jobs;
  options.only = arguments.only;
  options.rerun = arguments.rerun;
  options.argv = run::command_line();
  if (!arguments.shard.empty()) parse_shard(arguments.shard, options);
  if (arguments.dry_run) {
    print_dry_run(experiment, plan, options, arguments.json);
    if (const auto reason = run::missing_here(experiment)) {
      std::fflush(stdout);  // the last line, also where both go to one file
      fmt::print(stderr, "kvlab: warning: nothing of this can run here: {}\n", *reason);
    }
    return;
  }

  is_rerun = arguments.rerun;
  std::signal(SIGINT, on_signal);
  std::signal(SIGTERM, on_signal);
  run::Outcome outcome;
  {
    const auto progress = make_progress(arguments.no_progress);
    outcome = run::run(experiment, plan, options, *progress, stop_asked);
  }
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  print_outcome(outcome, experiment.output, seconds, arguments.json);
  if (outcome.interrupted) {
    // Cells under way still run on their threads; they are abandoned with the process.
    std::fflush(stdout);
    std::_Exit(Exit::interrupted);
  }
  if (!outcome.broken.empty()) fmt::print(stderr, "kvlab: {}\n", outcome.broken);
  result.code = exit_code(outcome, options);
  if (result.code == Exit::wrong_input) print_why_nothing_ran(outcome);
}

}  // namespace

void add_run(CLI::App& app, Exit& result) {
  auto arguments = std::make_shared<RunArguments>();
  CLI::App* verb = app.add_subcommand("run", "Run an experiment and store what it measures");
  verb->add_option("experiment", arguments->file, "experiment file (YAML)")->required();
  verb->add_option("--set", arguments->edits, "KEY=VALUE: edit the experiment; VALUE is YAML")
      ->take_all()
      ->allow_extra_args(false);
  CLI::Option* out = verb->add_option("--out", arguments->out,
                                      "results file in place of the experiment's `output`");
  verb->add_option("--backend", arguments->backend, "reference, cpu or cuda");
  verb->add_option("--jobs", arguments->jobs,
                   "cells computed at a time (default: one a core); changes no number")
      ->check(CLI::Range(int64_t{1}, int64_t{4096}));
  verb->add_option("--only", arguments->only, "run only this method (id or label); may be repeated")
      ->take_all()
      ->allow_extra_args(false);
  verb->add_option("--shard", arguments->shard,
                   "I/N: run the I-th of N parts; kvlab merge joins them");
  verb->add_flag("--dry-run", arguments->dry_run,
                 "list the cells, estimate time and bytes, run nothing");
  verb->add_flag("--rerun", arguments->rerun, "compute complete cells again");
  verb->add_flag("--no-progress", arguments->no_progress, "show only warnings and failures");
  verb->add_flag("--json", arguments->json, "print the outcome as JSON");
  verb->footer(
      "Example: kvlab run experiments/demo.yaml --only kivi --set probes.count=32\n"
      "A second run continues where an interrupted one stopped.");
  verb->callback([arguments, out, &result] {
    arguments->has_out = out->count() > 0;
    execute(*arguments, result);
  });
}

void add_validate(CLI::App& app, Exit&) {
  auto arguments = std::make_shared<RunArguments>();
  CLI::App* verb =
      app.add_subcommand("validate", "Check an experiment file and show every mistake at once");
  verb->add_option("experiment", arguments->file, "experiment file (YAML)")->required();
  verb->add_option("--set", arguments->edits, "KEY=VALUE: edit the experiment; VALUE is YAML")
      ->take_all()
      ->allow_extra_args(false);
  verb->footer("Example: kvlab validate experiments/demo.yaml");
  verb->callback([arguments] {
    const config::Experiment experiment = run::load(arguments->file, arguments->edits);
    const config::Plan plan = plan_of(experiment);
    fmt::print("{}: valid, {}, {}\n", arguments->file, counted(std::ssize(plan.cells), "cell"),
               counted(std::ssize(plan.rows), "row"));
  });
}

}  // namespace kvlab::cli
