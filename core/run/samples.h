#pragma once

#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "config/plan.h"
#include "metrics/context.h"

namespace kvlab::run {

/// The samples of a run: each loaded once, when the first cell asks for it, and let go after the
/// last one. Safe for several threads.
class Samples {
 public:
  /// A sample with what loading it had to say.
  struct Loaded {
    std::shared_ptr<const metrics::SampleContext> context;
    std::vector<std::string> warnings;
  };

  /// Announces one later use of this cell's sample.
  void expect(const config::Cell& cell);

  /// The cell's sample. Throws what loading threw, for every cell that asks.
  Loaded get(const config::Cell& cell);

  /// One announced use is over.
  void release(const config::Cell& cell);

  /// The calibration sample of a cell on a layer; held as long as somebody holds it.
  std::shared_ptr<const data::Sample> calibration(const config::Cell& cell, int64_t layer);

 private:
  struct Entry {
    int64_t uses = 0;
    std::shared_future<Loaded> loaded;
  };

  std::mutex mutex_;
  std::map<std::string, Entry> entries_;
  std::map<std::string, std::weak_ptr<const data::Sample>> calibrations_;
  std::mutex calibration_mutex_;
};

}  // namespace kvlab::run
