#include "report/bootstrap.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <numeric>
#include <random>

#include "metrics_catalog/catalog.h"

namespace kvlab::report {
namespace {

constexpr size_t kResamples = 10'000;
constexpr size_t kReplicates = 500;  // draws of a passage's blocks
constexpr uint64_t kSeed = 20260519;

/// A place below `count`. The distributions of <random> differ between libraries, its engines do
/// not.
size_t draw(std::mt19937_64& engine, size_t count) {
  return static_cast<size_t>((engine() >> 32) * count >> 32);
}

/// Draws of a passage's blocks, with repeats: the same for all passages with as many.
const std::vector<std::vector<size_t>>& block_draws(size_t blocks) {
  static std::map<size_t, std::vector<std::vector<size_t>>> all;
  auto [found, is_new] = all.try_emplace(blocks);
  if (!is_new) return found->second;
  std::mt19937_64 engine(kSeed);
  found->second.assign(kReplicates, std::vector<size_t>(blocks));
  for (auto& drawn : found->second) {
    for (size_t& block : drawn) block = draw(engine, blocks);
  }
  return found->second;
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

Sampled Sampled::of(const std::function<double(const std::vector<double>&)>& f,
                    const std::vector<const Sampled*>& numbers) {
  std::vector<double> values;
  size_t replicates = 0;
  for (const Sampled* number : numbers) {
    values.push_back(number->value);
    replicates = std::max(replicates, number->replicates.size());
  }
  Sampled result{.value = f(values), .replicates = {}};
  for (size_t i = 0; i < replicates; ++i) {
    for (size_t j = 0; j < numbers.size(); ++j) {
      if (!numbers[j]->replicates.empty()) values[j] = numbers[j]->replicates[i];
    }
    result.replicates.push_back(f(values));
  }
  return result;
}

Sampled mean_of(const std::vector<Sampled>& numbers) {
  std::vector<const Sampled*> all;
  all.reserve(numbers.size());
  for (const Sampled& number : numbers) all.push_back(&number);
  return Sampled::of(
      [](const std::vector<double>& values) {
        return std::accumulate(values.begin(), values.end(), 0.0) /
               static_cast<double>(values.size());
      },
      all);
}

Sampled sampled(const store::CellResult& cell, const std::string& metric) {
  const auto scalar = cell.scalars.find(metric);
  Sampled result{.value = scalar == cell.scalars.end() ? std::numeric_limits<double>::quiet_NaN()
                                                       : scalar->second,
                 .replicates = {}};
  const auto found = cell.blocks.find(metric);
  if (found == cell.blocks.end() || !std::isfinite(result.value)) return result;
  const auto heads = static_cast<size_t>(found->second.shape[0]);
  const auto blocks = static_cast<size_t>(found->second.shape[1]);
  const std::vector<double>& sums = found->second.data;  // [heads, blocks, 2]
  const bool is_root = metrics::is_norm_ratio(metric);
  for (const std::vector<size_t>& drawn : block_draws(blocks)) {
    double of_heads = 0;
    for (size_t head = 0; head < heads; ++head) {
      double over = 0, under = 0;
      for (const size_t block : drawn) {
        over += sums[(head * blocks + block) * 2];
        under += sums[(head * blocks + block) * 2 + 1];
      }
      const double ratio = over == 0 && under == 0 ? 0 : over / under;
      of_heads += is_root ? std::sqrt(ratio) : ratio;
    }
    result.replicates.push_back(of_heads / static_cast<double>(heads));
  }
  return result;
}

Interval bootstrap(const std::vector<Sampled>& passages, double margin) {
  std::mt19937_64 engine(kSeed);
  std::vector<double> means(kResamples);
  double observed = 0;
  for (const Sampled& passage : passages) observed += passage.value;
  for (double& mean : means) {
    double sum = 0;
    for (size_t i = 0; i < passages.size(); ++i) {
      const Sampled& passage = passages[draw(engine, passages.size())];
      sum += passage.replicates.empty()
                 ? passage.value
                 : passage.replicates[draw(engine, passage.replicates.size())];
    }
    mean = sum / static_cast<double>(passages.size());
  }
  return interval_of(observed / static_cast<double>(passages.size()), std::move(means), margin);
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
