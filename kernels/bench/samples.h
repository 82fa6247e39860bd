#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kvlab::bench {

/// What Google Benchmark does not keep of a case.
struct Samples {
  std::vector<double> nanoseconds;
  std::vector<std::string> warnings;
};

/// Samples and warnings from here on are of one more run of the case of this name: Google Benchmark
/// runs a case anew until it takes long enough, and that run's repetitions after it.
void begin_samples(const std::string& name);
void keep_sample(double nanoseconds);
void keep_warning(const std::string& sentence);

/// Of the last `runs` runs of a case that was begun at least so often, together.
Samples samples_of(const std::string& name, std::int64_t runs);

double median(std::vector<double> numbers);

}  // namespace kvlab::bench
