#pragma once

#include <mutex>
#include <vector>

#include "attention/reference.h"
#include "data/sample.h"

namespace kvlab::metrics {

/// A sample with what all cells on it share: exact attention, computed once. Safe for several
/// threads.
class SampleContext {
 public:
  /// Exact attention of all heads is kept where it takes at most `budget` bytes, else computed anew
  /// for each use.
  explicit SampleContext(data::Sample sample, int64_t budget = int64_t{256} << 20);

  const data::Sample& sample() const { return sample_; }

  /// Exact attention of probes [first, first + count) of one query head of one sequence. k, v: the
  /// head's keys and values in float64 [T, d], which the caller has anyway.
  attention::Exact exact(int64_t sequence, int64_t q_head, const at::Tensor& k, const at::Tensor& v,
                         int64_t first, int64_t count) const;

 private:
  data::Sample sample_;
  bool keep_ = false;
  mutable std::vector<std::once_flag> once_;
  mutable std::vector<attention::Exact> kept_;
};

}  // namespace kvlab::metrics
