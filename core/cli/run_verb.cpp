#include <fmt/format.h>

#include <atomic>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/utf8.h"
#include "cli/progress.h"
#include "cli/verbs.h"
#include "config/experiment.h"
#include "run/describe.h"
#include "run/estimate.h"
#include "run/runner.h"

namespace kvlab::cli {
namespace {

std::atomic<bool> stop_asked{false};

/// The first signal asks for an orderly end, the second leaves at once.
extern "C" void on_signal(int) {
  if (stop_asked.exchange(true)) std::_Exit(Exit::interrupted);
}

struct RunArguments {
  std::string file;
  std::vector<std::string> edits;
  std::string out, backend, shard;
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

/// The command as it was typed, words with special characters in quotes.
std::string command_line() {
  std::ifstream in("/proc/self/cmdline", std::ios::binary);
  std::string text;
  for (std::string word; std::getline(in, word, '\0');) {
    const bool is_plain = word.find_first_of(" \t\n'\"{}[]()*?$&|;<>#`\\") == std::string::npos;
    if (!text.empty()) text += ' ';
    text += is_plain ? word : "'" + word + "'";
  }
  return text;
}

void print_dry_run(const config::Plan& plan, const run::Options& options, bool json) {
  const std::vector<size_t> cells = run::selected(plan, options);
  const run::Estimate estimate = run::estimate(plan, cells, options);
  if (json) {
    nlohmann::json list = nlohmann::json::array();
    for (const size_t index : cells) {
      const config::Cell& cell = plan.cells[index];
      list.push_back({{"id", cell.id},
                      {"state", cell.state == config::CellState::run           ? "run"
                                : cell.state == config::CellState::unsupported ? "unsupported"
                                                                               : "excluded"},
                      {"reason", cell.reason},
                      {"config", cell.config}});
    }
    const nlohmann::json all = {{"cells", list},
                                {"rows", plan.rows.size()},
                                {"estimated_seconds", estimate.seconds},
                                {"estimated_bytes", estimate.bytes}};
    fmt::print("{}\n", json_text(all, 2));
    return;
  }
  for (const size_t index : cells) {
    const config::Cell& cell = plan.cells[index];
    const char* state = cell.state == config::CellState::run           ? "run"
                        : cell.state == config::CellState::unsupported ? "unsupported"
                                                                       : "excluded";
    fmt::print("{}  {:<11}  {}, window {}{}\n", cell.id.substr(0, 12), state, name_of(cell),
               cell.config["method"].value("window", nlohmann::json::object()).dump(),
               cell.reason.empty() ? "" : "  (" + cell.reason + ")");
  }
  fmt::print("{} cells, {} rows; about {} and {:.1f} MB of results (estimates)\n", cells.size(),
             plan.rows.size(), duration(estimate.seconds),
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
                                {"seconds", seconds}};
    fmt::print("{}\n", json_text(all, 2));
    return;
  }
  std::string text = fmt::format("{} cells complete", outcome.complete);
  if (outcome.reused > 0) text += fmt::format(" ({} from an earlier run)", outcome.reused);
  const auto also = [&](int64_t count, const char* what) {
    if (count > 0) text += fmt::format(", {} {}", count, what);
  };
  also(outcome.failed, "failed");
  also(outcome.unsupported, "unsupported");
  also(outcome.excluded, "excluded");
  also(outcome.left, "left to do");
  fmt::print("{} in {}: {}\n", text, duration(seconds), output.string());
  if (outcome.interrupted) fmt::print("interrupted; the same command goes on from here\n");
}

void execute(const RunArguments& arguments, Exit& result) {
  const auto begin = std::chrono::steady_clock::now();
  std::vector<std::string> edits = arguments.edits;
  if (!arguments.backend.empty()) edits.push_back("backend=" + arguments.backend);
  config::Experiment experiment = config::load(arguments.file, edits);
  if (!arguments.out.empty()) experiment.output = arguments.out;
  const config::Plan plan = config::make_plan(experiment, [&](const config::DatasetItem& item) {
    return run::describe(item, experiment.probes);
  });
  run::Options options;
  options.jobs = arguments.jobs;
  options.only = arguments.only;
  options.rerun = arguments.rerun;
  options.argv = command_line();
  if (!arguments.shard.empty()) parse_shard(arguments.shard, options);
  if (arguments.dry_run) {
    print_dry_run(plan, options, arguments.json);
    return;
  }

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
  if (outcome.failed > 0) result.code = Exit::some_failed;
}

}  // namespace

void add_run(CLI::App& app, Exit& result) {
  auto arguments = std::make_shared<RunArguments>();
  CLI::App* verb = app.add_subcommand("run", "Run an experiment and store what it measures");
  verb->add_option("experiment", arguments->file, "experiment file (YAML)")->required();
  verb->add_option("--set", arguments->edits, "KEY=VALUE: edit the experiment; VALUE is YAML")
      ->take_all()
      ->allow_extra_args(false);
  verb->add_option("--out", arguments->out, "results file in place of the experiment's `output`");
  verb->add_option("--backend", arguments->backend, "reference, cpu or cuda");
  verb->add_option("--jobs", arguments->jobs, "cells computed at a time (default: one a core)")
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
  verb->callback([arguments, &result] { execute(*arguments, result); });
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
    const config::Experiment experiment = config::load(arguments->file, arguments->edits);
    const config::Plan plan = config::make_plan(experiment, [&](const config::DatasetItem& item) {
      return run::describe(item, experiment.probes);
    });
    fmt::print("{}: valid, {} cells, {} rows\n", arguments->file, plan.cells.size(),
               plan.rows.size());
  });
}

}  // namespace kvlab::cli
