#include "samples.h"

#include <algorithm>
#include <map>

namespace kvlab::bench {
namespace {

/// By name, a run each.
std::map<std::string, std::vector<Samples>>& all() {
  static std::map<std::string, std::vector<Samples>> samples;
  return samples;
}

Samples* current = nullptr;

}  // namespace

void begin_samples(const std::string& name) { current = &all()[name].emplace_back(); }

void keep_sample(double nanoseconds) { current->nanoseconds.push_back(nanoseconds); }

void keep_warning(const std::string& sentence) { current->warnings.push_back(sentence); }

Samples samples_of(const std::string& name, std::int64_t runs) {
  const std::vector<Samples>& made = all().at(name);
  const auto count = std::min(made.size(), static_cast<size_t>(std::max<std::int64_t>(runs, 1)));
  Samples samples;
  for (auto run = made.end() - static_cast<std::ptrdiff_t>(count); run != made.end(); ++run) {
    samples.nanoseconds.insert(samples.nanoseconds.end(), run->nanoseconds.begin(),
                               run->nanoseconds.end());
    for (const std::string& warning : run->warnings) {
      auto& warnings = samples.warnings;
      if (std::find(warnings.begin(), warnings.end(), warning) == warnings.end())
        warnings.push_back(warning);
    }
  }
  return samples;
}

double median(std::vector<double> numbers) {
  const size_t half = numbers.size() / 2;
  std::sort(numbers.begin(), numbers.end());
  return numbers.size() % 2 == 1 ? numbers[half] : (numbers[half - 1] + numbers[half]) / 2;
}

}  // namespace kvlab::bench
