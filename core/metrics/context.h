#pragma once

#include <mutex>
#include <string>
#include <vector>

#include "attention/reference.h"
#include "data/sample.h"

namespace kvlab::metrics {

/// Exact causal attention of some queries of one head in float32: what packed backends are measured
/// against.
struct ExactSingle {
  at::Tensor logits;     // [P, T] q·k/√d, −inf where a token lies behind the query
  at::Tensor weights;    // [P, T]
  at::Tensor output;     // float64 [P, d]
  at::Tensor strongest;  // int64 [P]: the token of the largest logit
};

/// A sample with what all cells on it share: exact attention, computed once. Safe for several
/// threads.
class SampleContext {
 public:
  /// Exact attention of all heads is kept where it takes at most `budget` bytes, else computed anew
  /// for each use.
  explicit SampleContext(data::Sample sample, int64_t budget = int64_t{256} << 20);

  const data::Sample& sample() const { return sample_; }

  /// Which of "keys", "values" and "queries" has NaN or infinite values, the first; empty: none.
  const std::string& nonfinite() const;

  /// Exact attention of probes [first, first + count) of one query head of one sequence. k, v: the
  /// head's keys and values in float64 [T, d], which the caller has anyway.
  attention::Exact exact(int64_t sequence, int64_t q_head, const at::Tensor& k, const at::Tensor& v,
                         int64_t first, int64_t count) const;

  /// The same in float32; k, v: float32 [T, d].
  ExactSingle exact_single(int64_t sequence, int64_t q_head, const at::Tensor& k,
                           const at::Tensor& v, int64_t first, int64_t count) const;

 private:
  /// What every query head has once: computed by the first who asks, or never kept.
  template <typename Result>
  struct Kept {
    explicit Kept(size_t heads) : once(heads), results(heads) {}
    std::vector<std::once_flag> once;
    std::vector<Result> results;
  };

  data::Sample sample_;
  bool keep_ = false;
  bool keep_single_ = false;
  mutable std::once_flag looked_;
  mutable std::string nonfinite_;
  mutable Kept<attention::Exact> exact_;
  mutable Kept<ExactSingle> single_;
};

}  // namespace kvlab::metrics
