#pragma once

#include <cstddef>
#include <vector>

namespace kvlab::report {

/// A mean over passages with what resampling the passages makes of it.
struct Interval {
  double mean = 0;
  double low = 0, high = 0;  // 2.5% and 97.5% points of the resampled means
  double p = 1;  // two-sided: twice the smaller share of resampled means beyond zero, at most 1;
                 // with a margin: twice the smaller of the shares inside and outside it
};

/// One value a passage, at least one. 10,000 resamples from a fixed seed: the same values in the
/// same order give the same interval on every machine.
/// A margin above zero asks for equality: whether the mean lies within ±margin.
Interval bootstrap(const std::vector<double>& passages, double margin = 0);

/// Values by position of each passage, at least one in all: passages are resampled and, within
/// them, blocks of `block` neighbouring positions, since neighbours are not independent. The mean
/// is over all positions. 2,000 resamples from a fixed seed.
Interval block_bootstrap(const std::vector<std::vector<double>>& passages, size_t block = 128);

/// Holm's step-down correction: p-values of a table, each adjusted so that calling those below α
/// true errs once with probability α at most.
std::vector<double> holm(const std::vector<double>& p);

}  // namespace kvlab::report
