#pragma once

#include <benchmark/benchmark.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "store/store.h"

namespace kvlab::bench {

/// Prints as Google Benchmark does and writes every case with its raw samples to a file of
/// kvlab.results/1: a row a case, `method` its format, `label` its backend and format, an axis for
/// every other key of its name, and its median time, counters and errors.
class ResultsReporter final : public benchmark::ConsoleReporter {
 public:
  /// Throws Error where the file cannot be written or is not a results file.
  ResultsReporter(const std::filesystem::path& file, const std::string& argv);

  void ReportRuns(const std::vector<Run>& runs) override;
  void Finalize() override;

 private:
  void add(const Run& run);
  void write();

  std::filesystem::path file_;
  store::RunLock lock_;
  store::Results results_;
  std::chrono::steady_clock::time_point written_;
};

}  // namespace kvlab::bench
