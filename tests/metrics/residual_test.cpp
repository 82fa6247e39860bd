#include "metrics/residual.h"

#include <ATen/ATen.h>

#include <cmath>

#include "catch.h"
#include "metrics/cases.h"
#include "metrics/water_filling.h"

using namespace kvlab;
using cases::gaussian_sample;
using cases::recipe;
using cases::run;

namespace {

constexpr int64_t kTokens = 96, kDim = 32, kGroup = 8;

/// Keys of head 0 as a codec of groups of 8 tokens and 2 bits reads them, by loops.
struct ByLoops {
  double trace = 0, range = 0, largest = 0;
};

ByLoops by_loops(const data::Sample& sample) {
  const at::Tensor k = sample.k.to(at::kDouble);
  const at::Tensor q = sample.q.to(at::kDouble);
  const auto key = [&](int64_t t, int64_t c) { return k[0][0][t][c].item<double>(); };
  std::vector<std::vector<double>> error(kTokens, std::vector<double>(kDim));
  ByLoops found;
  for (int64_t c = 0; c < kDim; ++c) {
    for (int64_t first = 0; first < kTokens; first += kGroup) {
      double lo = key(first, c), hi = lo;
      for (int64_t t = first; t < first + kGroup; ++t) {
        lo = std::min(lo, key(t, c));
        hi = std::max(hi, key(t, c));
        found.largest = std::max(found.largest, std::abs(key(t, c)));
      }
      found.range += (hi - lo) / (static_cast<double>(kDim) * kTokens / kGroup);
      const double step = (hi - lo) / 3;
      for (int64_t t = first; t < first + kGroup; ++t) {
        error[t][c] = lo + step * std::nearbyint((key(t, c) - lo) / step) - key(t, c);
      }
    }
  }
  int64_t queries = 0;
  for (int64_t head = 0; head < 2; ++head) {
    for (int64_t p = 0; p < q.size(2); ++p, ++queries) {
      for (int64_t t = 0; t < kTokens; ++t) {
        double product = 0;
        for (int64_t c = 0; c < kDim; ++c) product += q[0][head][p][c].item<double>() * error[t][c];
        found.trace += product * product / kTokens;
      }
    }
  }
  found.trace /= static_cast<double>(queries);
  return found;
}

}  // namespace

TEST_CASE("Residual diagnostics equal loops over their definitions", "[residual]") {
  const data::Sample sample = gaussian_sample({}, 300, {40, 60, 95});
  const Settings edits = {{"key.codec.group", kGroup},
                          {"value.codec.group", kGroup},
                          {"key.codec.params", "fp32"},
                          {"window.recent", 0},
                          {"window.flush", "block"}};
  const auto found = run(sample, recipe("kivi", edits), {"residual"}).metrics;
  const ByLoops expected = by_loops(sample);
  CHECK(found.at("k_residual_trace")[0].item<double>() == Approx(expected.trace).epsilon(1e-4));
  CHECK(found.at("k_group_range")[0].item<double>() == Approx(expected.range).epsilon(1e-6));
  CHECK(found.at("k_entering_max")[0].item<double>() == Approx(expected.largest).epsilon(1e-6));
}

TEST_CASE("A covariance basis is seen most unevenly, with a Hadamard transform evenly",
          "[residual]") {
  data::Sample sample = gaussian_sample({}, 301);
  // Channel 3 of the queries is ten times as large.
  sample.q.select(3, 3).mul_(10);
  const auto importance = [&](const std::string& rotate) {
    const Settings edits = {{"key.rotate", rotate},      {"value.rotate", "none"},
                            {"key.codec.group", 32},     {"value.codec.group", 32},
                            {"key.bit_reversal", false}, {"window.sink", 0},
                            {"window.recent", 0}};
    return run(sample, recipe("oscar_cov", edits), {"residual"}, &sample)
        .metrics.at("k_importance")
        .mean()
        .item<double>();
  };
  // One channel of 32 has 100 times the others' second moment: 100·32/131.
  CHECK(importance("covariance") == Approx(3200.0 / 131).epsilon(0.15));
  // The shared basis averages the heads' covariances, so each head's own is near 1.
  CHECK(importance("covariance_hadamard") < 1.5);
}

TEST_CASE("Reverse water-filling: worked by hand", "[residual]") {
  using metrics::reverse_water_filling;
  // Equal variances: ½·log2(σ²/D) each.
  CHECK(reverse_water_filling(at::full({4}, 16.0, at::kDouble), 4) == Approx(2));
  // Water at 1 covers the component of ½: 1 + 1 + ½ are lost, ½·log2 4 and ½·log2 16 are sent.
  const at::Tensor uneven = at::tensor({16.0, 0.5, 4.0}, at::kDouble);
  CHECK(reverse_water_filling(uneven, 2.5) == Approx((2.0 + 1.0) / 3));
  CHECK(reverse_water_filling(uneven, 20.5) == 0);
  CHECK(reverse_water_filling(uneven, 30) == 0);
  CHECK(std::isinf(reverse_water_filling(uneven, 0)));
}

TEST_CASE("Variances as queries see them: those of root-weighted keys", "[residual]") {
  const at::Tensor x =
      at::tensor({1.0, 3.0, 5.0, 3.0, 1.0, -3.0, 5.0, -3.0}, at::kDouble).view({4, 2});
  // Channels are uncorrelated with variances 4 and 9; queries see the first one four times as much.
  const at::Tensor c = at::tensor({4.0, 0.0, 0.0, 1.0}, at::kDouble).view({2, 2});
  const at::Tensor seen = std::get<0>(metrics::seen_variances(x, c).sort());
  CHECK(seen[0].item<double>() == Approx(9));
  CHECK(seen[1].item<double>() == Approx(16));
}

TEST_CASE("On normal keys the bits that a residual needs are fewer than the codec's",
          "[residual]") {
  const Settings edits = {{"key.codec.group", 8},
                          {"value.codec.group", 8},
                          {"window.recent", 0},
                          {"window.flush", "block"}};
  const auto found =
      run(gaussian_sample({}, 303), recipe("kivi", edits), {"residual", "memory"}).metrics;
  const at::Tensor needed = found.at("k_bits_needed");
  CHECK(needed.gt(1).all().item<bool>());
  CHECK(needed.max().item<double>() < found.at("bits_per_element_hist").item<double>());
}

TEST_CASE("Keys that are not quantized have no residual", "[residual]") {
  const auto found = run(gaussian_sample({}, 302), recipe("bf16"), {"residual"}).metrics;
  REQUIRE(found.size() == 5);
  for (const auto& [name, array] : found) CHECK(array.isnan().all().item<bool>());
}
