#include "report/bootstrap.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <random>

namespace kvlab::report {
namespace {

constexpr size_t kResamples = 10'000;
constexpr uint64_t kSeed = 20260519;

double mean_of(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

/// A place below `count`. The distributions of <random> differ between libraries, its engines do
/// not.
size_t draw(std::mt19937_64& engine, size_t count) {
  return static_cast<size_t>((engine() >> 32) * count >> 32);
}

}  // namespace

Interval bootstrap(const std::vector<double>& passages, double margin) {
  std::mt19937_64 engine(kSeed);
  std::vector<double> means(kResamples);
  for (double& mean : means) {
    double sum = 0;
    for (size_t i = 0; i < passages.size(); ++i) sum += passages[draw(engine, passages.size())];
    mean = sum / static_cast<double>(passages.size());
  }
  std::sort(means.begin(), means.end());
  // A mean on the line speaks for neither side, so it counts against both.
  const auto up_to = [&](double line) {
    return std::upper_bound(means.begin(), means.end(), line) - means.begin();
  };
  const auto from = [&](double line) {
    return means.end() - std::lower_bound(means.begin(), means.end(), line);
  };
  const auto smaller_side = [&]() -> std::ptrdiff_t {
    if (margin <= 0) return std::min(up_to(0), from(0));
    const auto inside = [&](double mean) { return std::abs(mean) <= margin; };
    return std::min(up_to(-margin) + from(margin),
                    std::count_if(means.begin(), means.end(), inside));
  };
  // The observed sample is one of the resamples: a share is never zero.
  const auto share = [](std::ptrdiff_t count) {
    return static_cast<double>(count + 1) / static_cast<double>(kResamples + 1);
  };
  return {.mean = mean_of(passages),
          .low = means[kResamples * 25 / 1000],
          .high = means[kResamples * 975 / 1000 - 1],
          .p = std::min(1.0, 2 * share(smaller_side()))};
}

std::vector<double> holm(const std::vector<double>& p) {
  std::vector<size_t> order(p.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return p[a] < p[b]; });
  std::vector<double> adjusted(p.size());
  double largest = 0;
  for (size_t rank = 0; rank < order.size(); ++rank) {
    const double scaled = static_cast<double>(p.size() - rank) * p[order[rank]];
    largest = std::max(largest, std::min(1.0, scaled));
    adjusted[order[rank]] = largest;
  }
  return adjusted;
}

}  // namespace kvlab::report
