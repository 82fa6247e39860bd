#pragma once

#include <string>
#include <vector>

namespace kvlab::bench {

/// What Google Benchmark does not keep of a case.
struct Samples {
  std::vector<double> nanoseconds;
  std::vector<std::string> warnings;
};

/// Samples and warnings from here on are of the case of this name; those that it had are forgotten,
/// as Google Benchmark repeats a case until it has run long enough.
void begin_samples(const std::string& name);
void keep_sample(double nanoseconds);
void keep_warning(const std::string& sentence);

/// Of a case that was begun.
const Samples& samples_of(const std::string& name);

double median(std::vector<double> numbers);

}  // namespace kvlab::bench
