#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "store/results.h"

namespace kvlab::report {

/// A mean over passages with what resampling the passages, and blocks within them, makes of it.
struct Interval {
  double mean = 0;
  double low = 0, high = 0;  // 2.5% and 97.5% points of the resampled means
  double p = 1;  // two-sided: twice the smaller share of resampled means beyond zero, at most 1;
                 // with a margin: twice the smaller of the shares inside and outside it
};

/// A number of one passage, and what it becomes where blocks of its positions are drawn with
/// repeats. Replicate i of all numbers of passages with as many blocks is of the same draw, so that
/// replicates of one passage are paired: a difference of numbers has the differences of replicates.
struct Sampled {
  double value = 0;
  std::vector<double> replicates;  // empty: by position nothing is known, or the value is no number

  /// f of the numbers and of their replicates. A number without replicates stands for itself.
  static Sampled of(const std::function<double(const std::vector<double>&)>& f,
                    const std::vector<const Sampled*>& numbers);
};

/// The mean of numbers of one passage, at least one.
Sampled mean_of(const std::vector<Sampled>& numbers);

/// The cell's scalar of a metric with its replicates, which the sums over blocks that the cell
/// holds give (metrics/blocks.h). NaN where it was not measured.
Sampled sampled(const store::CellResult& cell, const std::string& metric);

/// One number a passage, at least one. 10,000 resamples from a fixed seed: the same numbers in the
/// same order give the same interval on every machine. Each resample draws passages and of each one
/// a replicate.
/// A margin above zero asks for equality: whether the mean lies within ±margin.
Interval bootstrap(const std::vector<Sampled>& passages, double margin = 0);

/// Holm's step-down correction: p-values of a table, each adjusted so that calling those below α
/// true errs once with probability α at most.
std::vector<double> holm(const std::vector<double>& p);

}  // namespace kvlab::report
