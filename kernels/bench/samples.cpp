#include "samples.h"

#include <algorithm>
#include <map>

namespace kvlab::bench {
namespace {

std::map<std::string, Samples>& all() {
  static std::map<std::string, Samples> samples;
  return samples;
}

Samples* current = nullptr;

}  // namespace

void begin_samples(const std::string& name) {
  current = &all()[name];
  *current = {};
}

void keep_sample(double nanoseconds) { current->nanoseconds.push_back(nanoseconds); }

void keep_warning(const std::string& sentence) { current->warnings.push_back(sentence); }

const Samples& samples_of(const std::string& name) { return all().at(name); }

double median(std::vector<double> numbers) {
  const size_t half = numbers.size() / 2;
  std::sort(numbers.begin(), numbers.end());
  return numbers.size() % 2 == 1 ? numbers[half] : (numbers[half - 1] + numbers[half]) / 2;
}

}  // namespace kvlab::bench
