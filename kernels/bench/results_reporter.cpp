#include "results_reporter.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "base/code_version.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/output_file.h"
#include "base/schemas.h"
#include "case_name.h"
#include "config/experiment.h"
#include "run/cell.h"
#include "run/provenance.h"
#include "samples.h"
#include "store/store.h"

namespace kvlab::bench {
namespace {

using nlohmann::json;

/// Why there is no time; empty where there is one. Google Benchmark 1.8 has other names for it.
template <class Run>
std::string error_of(const Run& run) {
  if constexpr (requires { run.error_occurred; }) {
    return run.error_occurred ? run.error_message : std::string();
  } else {
    return run.skipped ? run.skip_message : std::string();
  }
}

/// Columns of every file, also where no case has the key; numbers among them.
const std::vector<std::string>& usual_axes() {
  static const std::vector<std::string> axes = {"operation", "batch", "tokens", "heads",
                                                "dim",       "group", "cache"};
  return axes;
}
bool is_number(const std::string& axis) {
  return axis == "batch" || axis == "tokens" || axis == "dim" || axis == "group";
}

/// An earlier file of benchmarks is replaced, an experiment's is not.
void require_own(const std::filesystem::path& file) {
  if (!std::filesystem::exists(file)) return;
  const std::string name = store::read_results(file).attributes["name"];
  if (name == "kvlab_bench") return;
  throw Error(fmt::format("{} holds the experiment '{}'; choose another file with --kvlab_out",
                          file.string(), name));
}

json axis_value(const NameParts& name, const std::string& axis) {
  std::string text = axis == "operation" ? name.operation : name.value(axis);
  if (!is_number(axis)) return text;
  return text.empty() ? 0 : std::stoi(text);
}

}  // namespace

ResultsReporter::ResultsReporter(const std::filesystem::path& file, const std::string& argv)
    : ConsoleReporter(::isatty(STDOUT_FILENO) ? OO_Color : OO_None), file_(file), lock_(file) {
  config::Experiment experiment;
  experiment.name = "kvlab_bench";
  run::Options options;
  options.argv = argv;
  results_.attributes = run::provenance(experiment, options);
  results_.attributes.erase("backend");
  results_.attributes.erase("experiment_file");
  results_.experiment_source = results_.experiment_resolved = "name: kvlab_bench\n";
  results_.axes = usual_axes();
  check_output(file, kResultsSchema);
  require_own(file);
  written_ = std::chrono::steady_clock::now();
}

void ResultsReporter::ReportRuns(const std::vector<Run>& runs) {
  ConsoleReporter::ReportRuns(runs);
  for (const Run& run : runs) {
    if (run.run_type == Run::RT_Iteration) add(run);
  }
  constexpr std::chrono::seconds kMostLost{5};
  if (std::chrono::steady_clock::now() - written_ > kMostLost) write();
}

void ResultsReporter::Finalize() {
  if (!results_.rows.empty()) write();
}

void ResultsReporter::add(const Run& run) {
  const std::string& text = run.run_name.function_name;
  const NameParts name = parts_of(text);
  store::CellResult cell;
  cell.id = sha256(text).substr(0, 16);
  cell.config = json{{"benchmark", text}}.dump();
  cell.reason = error_of(run);
  cell.status = cell.reason.empty() ? "complete" : "failed";
  cell.started = run::timestamp();
  cell.code_version = code_version();
  const Samples samples = samples_of(text, run.repetitions);
  cell.warnings = samples.warnings;
  if (cell.reason.empty()) {
    const std::string metric = name.operation + "_us";
    cell.samples[metric] = {{static_cast<std::int64_t>(samples.nanoseconds.size())},
                            samples.nanoseconds};
    cell.scalars[metric] = median(samples.nanoseconds) / 1e3;
    cell.metrics[metric] = {{}, {cell.scalars[metric]}};
    for (const auto& [counter, value] : run.counters) cell.scalars[counter] = value.value;
    for (const double nanoseconds : samples.nanoseconds) cell.seconds += 1e-9 * nanoseconds;
  }

  store::SummaryRow row;
  row.cell = cell.id;
  row.method = name.value("format").empty() ? name.value("name") : name.value("format");
  row.backend = name.value("backend");
  row.label = row.backend + " " + row.method;
  row.dataset = "normal";
  row.layer = -1;
  for (const auto& [key, value] : name.pairs) {
    const bool fixed = key == "backend" || key == "format" || key == "name";
    auto& axes = results_.axes;
    if (!fixed && std::find(axes.begin(), axes.end(), key) == axes.end()) {
      axes.push_back(key);
      for (store::SummaryRow& other : results_.rows) other.sweep.emplace_back("");
    }
  }
  for (const std::string& axis : results_.axes) row.sweep.push_back(axis_value(name, axis));

  // Repetitions come one by one, and each brings the samples of all.
  const bool known = results_.cells.contains(cell.id);
  results_.cells[cell.id] = std::move(cell);
  if (known) return;
  row.row = static_cast<std::int64_t>(results_.rows.size());
  results_.rows.push_back(std::move(row));
}

void ResultsReporter::write() {
  store::write_results(file_, results_);
  written_ = std::chrono::steady_clock::now();
}

}  // namespace kvlab::bench
