#include "run/runner.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <memory>
#include <set>
#include <thread>

#include "base/error.h"
#include "base/h5.h"
#include "base/names.h"
#include "cache/backend.h"
#include "run/cell.h"
#include "run/models.h"
#include "run/provenance.h"
#include "store/store.h"

namespace kvlab::run {
namespace {

using config::Cell;
using config::CellState;

/// What workers tell the thread that watches them.
struct Event {
  enum class Kind { finished, learning, broken };
  Kind kind = Kind::finished;
  size_t cell = 0;
  std::string status, reason;
  double seconds = 0;
  int64_t done = 0, all = 0;
};

/// Shared by the workers and the watching thread. Workers hold it too, so that it outlives an
/// interrupted run.
struct Shared {
  Shared(config::Plan the_plan, std::filesystem::path the_output)
      : plan(std::move(the_plan)),
        output(std::move(the_output)),
        inputs(output.parent_path() / "calibrations") {}

  const config::Plan plan;
  const std::filesystem::path output;
  Inputs inputs;

  std::mutex mutex;
  std::condition_variable changed;
  std::deque<size_t> to_do;
  std::deque<Event> events;
  int64_t workers = 0;
  int64_t storing = 0;     // workers that write a finished cell
  bool stopping = false;   // no cell is begun any more
  bool abandoned = false;  // nor stored

  void tell(Event event) {
    const std::lock_guard lock(mutex);
    events.push_back(std::move(event));
    changed.notify_all();
  }

  /// The next cell, or nothing where none is left.
  std::optional<size_t> next() {
    const std::lock_guard lock(mutex);
    if (stopping || to_do.empty()) return std::nullopt;
    const size_t cell = to_do.front();
    to_do.pop_front();
    return cell;
  }

  /// Whether a finished cell may be written now; end_storing() must follow.
  bool begin_storing() {
    const std::lock_guard lock(mutex);
    if (!abandoned) ++storing;
    return !abandoned;
  }

  void end_storing() {
    const std::lock_guard lock(mutex);
    --storing;
    changed.notify_all();
  }

  void leave() {
    const std::lock_guard lock(mutex);
    --workers;
    changed.notify_all();
  }
};

void compute_and_store(Shared& shared, size_t index) {
  const Cell& cell = shared.plan.cells[index];
  const auto learning = [&](int64_t done, int64_t all) {
    shared.tell({.kind = Event::Kind::learning,
                 .cell = index,
                 .status = {},
                 .reason = {},
                 .done = done,
                 .all = all});
  };
  const store::CellResult result = compute(cell, shared.inputs, learning);
  shared.inputs.release(cell);
  if (!shared.begin_storing()) return;
  try {
    store::write_part(shared.output, result);
    shared.tell({.kind = Event::Kind::finished,
                 .cell = index,
                 .status = result.status,
                 .reason = result.reason,
                 .seconds = result.seconds});
  } catch (...) {
    shared.end_storing();
    throw;
  }
  shared.end_storing();
}

void work(const std::shared_ptr<Shared>& shared, int threads) {
  at::set_num_threads(threads);
  while (const auto index = shared->next()) {
    try {
      compute_and_store(*shared, *index);
    } catch (const std::exception& error) {
      // Computing turns its errors into results; what arrives here is that a result could not be
      // stored.
      shared->tell(
          {.kind = Event::Kind::broken, .cell = *index, .status = {}, .reason = error.what()});
      break;
    }
  }
  shared->leave();
}

/// Rows of the selected cells, and of cells that the file has from an earlier run of the same
/// experiment.
std::vector<store::SummaryRow> summary_rows(const config::Experiment& experiment,
                                            const config::Plan& plan,
                                            const std::set<size_t>& chosen,
                                            const std::map<std::string, store::CellResult>& known) {
  std::vector<store::SummaryRow> rows;
  for (size_t i = 0; i < plan.rows.size(); ++i) {
    const config::Row& row = plan.rows[i];
    const std::string& id = plan.cells[row.cell].id;
    if (chosen.count(row.cell) == 0 && known.count(id) == 0) continue;
    store::SummaryRow out;
    out.row = static_cast<int64_t>(i);
    out.cell = id;
    out.method = row.method;
    out.label = row.label;
    out.dataset = row.dataset;
    out.text = row.text;
    out.backend = experiment.backend;
    out.layer = row.layer;
    out.seed = row.seed;
    out.seed_used = row.seed_used;
    out.sweep = row.sweep;
    out.warnings = row.warnings;
    rows.push_back(std::move(out));
  }
  return rows;
}

/// What an earlier run left in the output; empty where there is none. Refuses another experiment's
/// file.
store::Results earlier(const config::Experiment& experiment) {
  if (!std::filesystem::exists(experiment.output)) return {};
  store::Results results = store::read_results(experiment.output);
  const std::string name = results.attributes["name"];
  if (name != experiment.name) {
    throw Error(
        fmt::format("{} holds the experiment '{}', not '{}'; choose another output with --out",
                    experiment.output.string(), name, experiment.name));
  }
  return results;
}

/// Cells that an earlier run left complete.
struct Stored {
  std::set<std::string> intact;   // what is there counts
  std::set<std::string> damaged;  // must be computed again
};

Stored stored_cells(const config::Experiment& experiment, const config::Plan& plan,
                    const std::vector<size_t>& cells, const store::Results& results,
                    const Options& options) {
  Stored stored;
  if (options.rerun) return stored;
  for (const size_t index : cells) {
    const Cell& cell = plan.cells[index];
    const auto found = results.cells.find(cell.id);
    const bool complete = found != results.cells.end() && found->second.status == "complete";
    if (complete && cell.state == CellState::run) stored.intact.insert(cell.id);
  }
  stored.damaged = store::damaged_cells(experiment.output, stored.intact);
  for (const std::string& id : stored.damaged) stored.intact.erase(id);
  return stored;
}

/// Hands out cells to workers and waits for them, telling the observer what happens.
class Watch {
 public:
  Watch(std::shared_ptr<Shared> shared, Observer& observer, Outcome& outcome)
      : shared_(std::move(shared)), observer_(observer), outcome_(outcome) {}

  void start(int64_t jobs, int64_t threads_each) {
    const int threads = static_cast<int>(threads_each);
    shared_->workers = jobs;
    // Detached: an interrupted run does not wait for the cells under way.
    for (int64_t i = 0; i < jobs; ++i) std::thread(work, shared_, threads).detach();
  }

  void wait(const std::atomic<bool>& stop) {
    std::unique_lock lock(shared_->mutex);
    while (true) {
      shared_->changed.wait_for(lock, std::chrono::milliseconds(50));
      const bool stopped = stop;
      if (stopped) {
        // Cells under way are abandoned, but one that is being stored is waited for, and counted.
        shared_->abandoned = true;
        shared_->changed.wait(lock, [&] { return shared_->storing == 0; });
      }
      std::deque<Event> events = std::exchange(shared_->events, {});
      const bool over = shared_->workers == 0;
      if (stopped || !broken_.empty()) shared_->stopping = true;
      lock.unlock();
      for (const Event& event : events) tell(event);
      if (stopped && outcome_.left > 0) {
        outcome_.interrupted = true;
        return;
      }
      if (over) break;
      lock.lock();
    }
    outcome_.broken = broken_;
  }

 private:
  void tell(const Event& event) {
    const Cell& cell = shared_->plan.cells[event.cell];
    switch (event.kind) {
      case Event::Kind::learning:
        observer_.learning(cell, event.done, event.all);
        return;
      case Event::Kind::broken:
        broken_ = event.reason;
        return;
      case Event::Kind::finished:
        break;
    }
    if (event.status == "complete") ++outcome_.complete;
    if (event.status == "failed") ++outcome_.failed;
    if (event.status == "unsupported") ++outcome_.unsupported;
    if (event.status != "complete") ++outcome_.reasons[event.status + ": " + event.reason];
    --outcome_.left;
    observer_.finished_cell(cell, event.status, event.reason, event.seconds);
  }

  std::shared_ptr<Shared> shared_;
  Observer& observer_;
  Outcome& outcome_;
  std::string broken_;
};

}  // namespace

std::vector<size_t> selected(const config::Plan& plan, const Options& options) {
  std::set<size_t> wanted;
  std::set<std::string> unknown(options.only.begin(), options.only.end());
  std::set<std::string> names;
  for (const config::Row& row : plan.rows) {
    names.insert(row.method);
    names.insert(row.label);
    const bool named = std::any_of(
        options.only.begin(), options.only.end(),
        [&](const std::string& name) { return name == row.method || name == row.label; });
    if (options.only.empty() || named) wanted.insert(row.cell);
    unknown.erase(row.method);
    unknown.erase(row.label);
  }
  if (!unknown.empty()) {
    throw Error(fmt::format("--only: '{}' is no method of this experiment{}", *unknown.begin(),
                            did_you_mean(*unknown.begin(), {names.begin(), names.end()})));
  }
  // Neighbours share a sample, so a shard is a run of neighbours.
  const std::vector<size_t> all(wanted.begin(), wanted.end());
  const auto bound = [&](int64_t shard) {
    return static_cast<int64_t>(all.size()) * shard / options.shards;
  };
  return {all.begin() + bound(options.shard - 1), all.begin() + bound(options.shard)};
}

std::set<std::string> stored(const config::Experiment& experiment, const config::Plan& plan,
                             const Options& options) {
  return stored_cells(experiment, plan, selected(plan, options), earlier(experiment), options)
      .intact;
}

std::optional<std::string> missing_here(const config::Experiment& experiment) {
  if (auto reason = cache::missing_backend(experiment.backend)) return reason;
  return missing_device(experiment);
}

Outcome run(const config::Experiment& experiment, const config::Plan& plan, const Options& options,
            Observer& observer, const std::atomic<bool>& stop) {
  if (auto reason = missing_here(experiment)) throw Error(*reason);
  const std::vector<size_t> cells = selected(plan, options);
  const store::RunLock lock(experiment.output);
  if (!lock.is_effective()) {
    observer.warning(
        "this file system has no locks: nothing keeps a second run from writing the same file");
  }
  if (cells.empty()) {
    observer.warning(fmt::format("shard {}/{} has no cells: the experiment has only {}",
                                 options.shard, options.shards,
                                 counted(std::ssize(plan.cells), "cell")));
  }
  store::Results results = earlier(experiment);
  const Stored known = stored_cells(experiment, plan, cells, results, options);
  for (const std::string& id : known.damaged) {
    observer.warning(fmt::format(
        "{}: cell {} is not what was written, its checksum differs: it is computed again",
        experiment.output.string(), id));
  }

  Outcome outcome;
  auto shared = std::make_shared<Shared>(plan, experiment.output);
  std::map<std::string, store::CellResult> states;
  const auto state = [&](const Cell& cell, const char* status, const std::string& reason) {
    states[cell.id] = not_run(cell, status, reason);
    if (cell.state != CellState::run) ++outcome.reasons[fmt::format("{}: {}", status, reason)];
  };
  for (const size_t index : cells) {
    const Cell& cell = plan.cells[index];
    if (cell.state == CellState::excluded) {
      ++outcome.excluded;
      state(cell, "excluded", cell.reason);
    } else if (cell.state == CellState::unsupported) {
      ++outcome.unsupported;
      state(cell, "unsupported", cell.reason);
    } else if (known.intact.contains(cell.id)) {
      ++outcome.complete;
      ++outcome.reused;
    } else {
      state(cell, "interrupted", "not finished when the run stopped");
      shared->to_do.push_back(index);
      shared->inputs.expect(cell);
      ++outcome.left;
    }
  }

  // The file has every row from the start, so that whoever reads it at any moment sees what is
  // still to come.
  results.attributes = provenance(experiment, options);
  results.attributes["experiment_rows"] = std::to_string(plan.rows.size());
  results.experiment_source = experiment.source_text;
  results.experiment_resolved = experiment.resolved_text;
  results.axes = plan.axes;
  results.rows = summary_rows(experiment, plan, {cells.begin(), cells.end()}, results.cells);
  results.cells = std::move(states);
  store::update_results(experiment.output, results, known.damaged);

  // The last bits of a result depend on the number of threads, and in a whole model a last bit may
  // turn a code. So that number follows from the whole plan, not from what is left of it nor from
  // --jobs: a resumed run and shards give what one run gives. A time is that of a cell alone.
  const bool times =
      std::count(experiment.measure.begin(), experiment.measure.end(), "kernel_time") > 0;
  if (times && options.jobs > 1) {
    observer.warning("measure kernel_time computes one cell at a time, whatever --jobs says");
  }
  const int64_t asked = times ? 1 : options.jobs > 0 ? options.jobs : cores();
  const int64_t at_most = std::max<int64_t>(1, times ? 1 : std::ssize(plan.cells));
  const int64_t threads = std::max<int64_t>(1, cores() / at_most);
  const auto to_do = static_cast<int64_t>(shared->to_do.size());
  const int64_t jobs = std::min({asked, at_most, std::max<int64_t>(1, to_do)});
  observer.started(to_do + outcome.reused, outcome.reused, jobs);
  if (to_do > 0) {
    Watch watch(shared, observer, outcome);
    watch.start(jobs, threads);
    watch.wait(stop);
  }
  // What could not be stored will not be folded in either; its parts stay for the next run.
  if (!outcome.broken.empty()) return outcome;
  // Nobody may be within HDF5 while the parts are folded in and, if interrupted, the process is
  // left.
  h5::mutex().lock();
  for (const std::filesystem::path& path : store::fold(experiment.output).ignored) {
    observer.warning(
        fmt::format("{} is torn or no part of this file; it was left alone", path.string()));
  }
  if (!outcome.interrupted) h5::mutex().unlock();
  return outcome;
}

}  // namespace kvlab::run
