#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "attention/reference.h"
#include "data/sample.h"

namespace kvlab::metrics {

/// A sample with what all cells on it share: exact attention, computed once. Safe for several threads.
class SampleContext {
 public:
  /// Exact attention of all heads is kept where it takes at most `budget` bytes, else computed anew for each use.
  explicit SampleContext(data::Sample sample, int64_t budget = int64_t{256} << 20);

  const data::Sample& sample() const { return sample_; }

  /// Exact attention of one query head of one sequence.
  std::shared_ptr<const attention::Exact> exact(int64_t sequence, int64_t q_head) const;

 private:
  std::shared_ptr<const attention::Exact> compute(int64_t sequence, int64_t q_head) const;

  data::Sample sample_;
  bool keep_ = false;
  mutable std::vector<std::once_flag> once_;
  mutable std::vector<std::shared_ptr<const attention::Exact>> kept_;
};

}  // namespace kvlab::metrics
