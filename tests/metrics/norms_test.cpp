#include "metrics/norms.h"

#include <ATen/ATen.h>

#include <cmath>

#include "catch.h"
#include "metrics/cases.h"

using namespace kvlab;
using metrics::Arrays;

namespace {

at::Tensor numbers(const std::vector<double>& values, at::IntArrayRef shape) {
  return at::tensor(values, at::kDouble).reshape(shape);
}

}  // namespace

TEST_CASE("D51 norm imbalance by hand, per sequence and then averaged", "[norms]") {
  // Two sequences of two heads and three tokens.
  const at::Tensor norms = numbers({3, 6, 12, 4, 8, 2, 1, 1, 5, 2, 2, 2}, {2, 2, 3});
  const Arrays arrays = metrics::norm_imbalance(norms);
  const at::Tensor ratio = arrays.at("tni_ratio");
  CHECK(ratio[0].item<double>() == (4.0 + 5.0) / 2);
  CHECK(ratio[1].item<double>() == (4.0 + 1.0) / 2);
  // Over heads: √(9+16) = 5, √(36+64) = 10, √(144+4) = √148; √5, √5, √29.
  CHECK(arrays.at("tni_ratio_heads").dim() == 0);
  CHECK(arrays.at("tni_ratio_heads").item<double>() ==
        Approx((std::sqrt(148.0) / 5 + std::sqrt(29.0 / 5.0)) / 2).epsilon(1e-14));
  // Head 1: mean 14/3, population variance (84 − 196/3)/3; in the second sequence all are equal.
  const double first = std::sqrt((84.0 - 196.0 / 3) / 3) / (14.0 / 3);
  CHECK(arrays.at("tni_cv")[1].item<double>() == Approx(first / 2).epsilon(1e-14));
}

TEST_CASE("D48 a zero norm makes the ratio infinite, also where all are zero", "[norms]") {
  CHECK(std::isinf(metrics::norm_ratio(numbers({0, 2, 3}, {1, 3})).item<double>()));
  CHECK(std::isinf(metrics::norm_ratio(numbers({0, 0, 0}, {1, 3})).item<double>()));
  CHECK(metrics::norm_ratio(numbers({2, 2, 5}, {1, 3})).item<double>() == 2.5);
  CHECK(std::isnan(metrics::norm_ratio(at::zeros({1, 0}, at::kDouble)).item<double>()));
  CHECK(metrics::norm_imbalance(at::zeros({1, 1, 3}, at::kDouble)).at("tni_cv").item<double>() ==
        0.0);
}

TEST_CASE("block imbalance by hand", "[norms]") {
  // Blocks of 2, the fifth token fills none. Ratios 2 and 3; gaps 1 and 4.
  const at::Tensor norms = numbers({1, 2, 6, 2, 100}, {1, 1, 5});
  const at::Tensor errors = numbers({1, 3, 5, 7, 1000}, {1, 1, 5});
  const Arrays arrays = metrics::block_imbalance(norms, errors, 2, 2);
  CHECK(arrays.at("tni_block_ratio").item<double>() == 2.5);
  CHECK(arrays.at("tni_bound").item<double>() ==
        Approx((1.0 + 16.0) / 2 / (12 * 9)).epsilon(1e-14));
  CHECK(arrays.at("tni_block_mse").item<double>() == 4.0);
  CHECK(metrics::block_imbalance(norms, errors, 2, 4).at("tni_bound").item<double>() ==
        Approx((1.0 + 16.0) / 2 / (12 * 225)).epsilon(1e-14));
  for (const auto& [name, array] : metrics::block_imbalance(norms, errors, 32, 2)) {
    CAPTURE(name);
    CHECK(std::isnan(array.item<double>()));
  }
}

TEST_CASE("blocks are the key group per channel, 32 tokens per token", "[norms]") {
  const data::Sample sample = cases::gaussian_sample({1, 1, 1, 72, 16}, 400, {71});
  const at::Tensor norms = sample.k[0][0].to(at::kDouble).norm(2, -1);
  const auto expected = [&](int64_t begin, int64_t block, int64_t blocks) {
    double sum = 0;
    for (int64_t i = 0; i < blocks; ++i) {
      const at::Tensor part = norms.narrow(0, begin + i * block, block);
      sum += part.max().item<double>() / part.min().item<double>();
    }
    return sum / static_cast<double>(blocks);
  };
  const auto measured = [&](const std::string& id, const Settings& edits) {
    return cases::scalar(cases::run(sample, cases::recipe(id, edits), {"tni"}), "tni_block_ratio");
  };
  CHECK(measured("kivi", {{"key.codec.group", 16}, {"window.recent", 0}, {"window.sink", 3}}) ==
        Approx(expected(3, 16, 4)).epsilon(1e-12));
  CHECK(measured("int2_naive", {{"window.sink", 3}}) == Approx(expected(3, 32, 2)).epsilon(1e-12));
  // A group of one token is a block of one token: the ratio is 1.
  CHECK(measured("kivi", {{"key.codec.group", 1}, {"window.recent", 0}}) == 1.0);
}

TEST_CASE("the bound holds for the error of per-channel groups", "[norms]") {
  // Keys along one direction, of growing norm: the range of every channel is that of the norms.
  data::Sample sample = cases::gaussian_sample({1, 2, 2, 256, 64}, 410, {255});
  for (int64_t t = 0; t < 256; ++t)
    sample.k.select(2, t).copy_(sample.k.select(2, 0) * (1.0 + t % 32));
  const metrics::Measured measured = cases::run(
      sample, cases::recipe("kivi", {{"window.recent", 0}, {"key.codec.params", "fp32"}}), {"tni"});
  const double bound = cases::scalar(measured, "tni_bound");
  CHECK(bound > 0);
  CHECK(cases::scalar(measured, "tni_block_mse") == Approx(bound).epsilon(0.15));
}
