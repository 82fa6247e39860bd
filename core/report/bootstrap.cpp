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

/// Percentiles of resampled means, and the share of them on the smaller side of zero or, with a
/// margin, of its two lines.
Interval interval_of(double mean, std::vector<double> means, double margin) {
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
    const auto inside = [&](double one) { return std::abs(one) <= margin; };
    return std::min(up_to(-margin) + from(margin),
                    std::count_if(means.begin(), means.end(), inside));
  };
  // The observed sample is one of the resamples: a share is never zero.
  const auto share = [&](std::ptrdiff_t count) {
    return static_cast<double>(count + 1) / static_cast<double>(means.size() + 1);
  };
  return {.mean = mean,
          .low = means[means.size() * 25 / 1000],
          .high = means[means.size() * 975 / 1000 - 1],
          .p = std::min(1.0, 2 * share(smaller_side()))};
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
  return interval_of(mean_of(passages), std::move(means), margin);
}

Interval block_bootstrap(const std::vector<std::vector<double>>& passages, size_t block) {
  constexpr size_t kBlockResamples = 2'000;
  struct Block {
    double sum = 0;
    double count = 0;
  };
  std::vector<std::vector<Block>> all;
  Block whole;
  for (const std::vector<double>& passage : passages) {
    std::vector<Block> blocks;
    for (size_t first = 0; first < passage.size(); first += block) {
      const size_t end = std::min(first + block, passage.size());
      const double sum = std::accumulate(passage.begin() + static_cast<std::ptrdiff_t>(first),
                                         passage.begin() + static_cast<std::ptrdiff_t>(end), 0.0);
      blocks.push_back({sum, static_cast<double>(end - first)});
      whole.sum += sum;
      whole.count += blocks.back().count;
    }
    if (!blocks.empty()) all.push_back(std::move(blocks));
  }
  std::mt19937_64 engine(kSeed);
  std::vector<double> means(kBlockResamples);
  for (double& mean : means) {
    Block drawn;
    for (size_t i = 0; i < all.size(); ++i) {
      const std::vector<Block>& blocks = all[draw(engine, all.size())];
      for (size_t j = 0; j < blocks.size(); ++j) {
        const Block& one = blocks[draw(engine, blocks.size())];
        drawn.sum += one.sum;
        drawn.count += one.count;
      }
    }
    mean = drawn.sum / drawn.count;
  }
  return interval_of(whole.sum / whole.count, std::move(means), /*margin=*/0);
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
