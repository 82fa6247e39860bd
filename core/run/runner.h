#pragma once

#include <atomic>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "config/plan.h"

namespace kvlab::run {

struct Options {
  int64_t jobs = 0;                    // cells at a time; 0: one a core; changes no number
  std::vector<std::string> only = {};  // method ids or labels; empty: all
  int64_t shard = 1, shards = 1;       // run the shard-th of `shards` parts
  bool rerun = false;                  // compute complete cells again
  std::string argv = {};               // recorded
};

/// What happens during a run, for whoever shows it. Calls come from one thread at a time.
class Observer {
 public:
  virtual ~Observer() = default;
  /// all: cells of this run; done: those that an earlier run finished.
  virtual void started(int64_t all, int64_t done, int64_t jobs) = 0;
  virtual void finished_cell(const config::Cell& cell, const std::string& status,
                             const std::string& reason, double seconds) = 0;
  /// A calibration is being learned for this cell.
  virtual void learning(const config::Cell& cell, int64_t done, int64_t all) = 0;
  virtual void warning(const std::string& message) = 0;
};

struct Outcome {
  int64_t complete = 0, failed = 0, unsupported = 0, excluded = 0, left = 0;
  int64_t reused = 0;                           // complete cells of earlier runs among `complete`
  std::map<std::string, int64_t> reasons = {};  // "unsupported: …" of cells that are not complete
  bool interrupted = false;
  std::string broken = {};  // why no more results could be stored, such as a full disk
};

/// Cells that options select, as indices into plan.cells.
std::vector<size_t> selected(const config::Plan& plan, const Options& options);

/// Ids of the plan's cells that an earlier run left complete in `experiment.output`; none with
/// options.rerun. Throws Error where that file holds another experiment.
std::set<std::string> stored(const config::Experiment& experiment, const config::Plan& plan,
                             const Options& options);

/// Why nothing of the experiment can run here: its backend or a model's device is not there.
/// Nothing where it can.
std::optional<std::string> missing_here(const config::Experiment& experiment);

/// Runs the cells of a plan that are not yet complete in `experiment.output` and stores each as it
/// is finished. A raised `stop` ends it: what is finished is stored, cells under way are abandoned
/// with their threads, and the caller must leave the process without waiting for them. Results that
/// can no longer be stored end it too (Outcome::broken). Throws Error where something is
/// missing_here, or the output cannot be written, is in use by another run or holds another
/// experiment.
Outcome run(const config::Experiment& experiment, const config::Plan& plan, const Options& options,
            Observer& observer, const std::atomic<bool>& stop);

}  // namespace kvlab::run
