#include "report/bootstrap.h"

#include "catch.h"

namespace kvlab::report {
namespace {

TEST_CASE("Equal passages leave no doubt") {
  const Interval interval = bootstrap(std::vector<double>(16, -0.5));
  CHECK(interval.mean == -0.5);
  CHECK(interval.low == -0.5);
  CHECK(interval.high == -0.5);
  CHECK(interval.p == Approx(2.0 / 10001));
}

TEST_CASE("Two passages: the resampled means are the four that there are") {
  // {0, 1} gives 0, ½, ½, 1: a quarter of the means lies at or below zero.
  const Interval interval = bootstrap({0, 1});
  CHECK(interval.mean == 0.5);
  CHECK(interval.low == 0);
  CHECK(interval.high == 1);
  CHECK(interval.p == Approx(0.5).margin(0.03));
}

TEST_CASE("The interval of many passages is that of a normal mean") {
  // ±1 alternating about 0.2: standard error of the mean 1/√400 = 0.05.
  std::vector<double> passages;
  for (int i = 0; i < 400; ++i) passages.push_back(0.2 + (i % 2 == 0 ? 1 : -1));
  const Interval interval = bootstrap(passages);
  CHECK(interval.mean == Approx(0.2));
  CHECK(interval.low == Approx(0.2 - 1.96 * 0.05).margin(0.005));
  CHECK(interval.high == Approx(0.2 + 1.96 * 0.05).margin(0.005));
}

TEST_CASE("With a margin the question is whether the mean lies within it") {
  CHECK(bootstrap(std::vector<double>(16, 0.01), 0.02).p == Approx(2.0 / 10001));   // all inside
  CHECK(bootstrap(std::vector<double>(16, -0.05), 0.02).p == Approx(2.0 / 10001));  // all outside
  // {0, 1} about a margin of ¾: a quarter of the means lies outside.
  CHECK(bootstrap({0, 1}, 0.75).p == Approx(0.5).margin(0.03));
  CHECK(bootstrap({0, -1}, 0.75).p == Approx(0.5).margin(0.03));
}

TEST_CASE("The same passages give the same interval") {
  const std::vector<double> passages = {0.3, -0.1, 0.7, 0.2};
  const Interval first = bootstrap(passages);
  const Interval second = bootstrap(passages);
  CHECK(first.low == second.low);
  CHECK(first.high == second.high);
  CHECK(first.p == second.p);
}

TEST_CASE("Holm: worked by hand") {
  // Ascending 0.01·3, 0.03·2, 0.04·1, and never less than the one before.
  const std::vector<double> adjusted = holm({0.01, 0.04, 0.03});
  CHECK(adjusted[0] == Approx(0.03));
  CHECK(adjusted[1] == Approx(0.06));
  CHECK(adjusted[2] == Approx(0.06));
  CHECK(holm({0.7, 0.6}) == std::vector<double>{1, 1});
  CHECK(holm({}).empty());
}

}  // namespace
}  // namespace kvlab::report

TEST_CASE("blocks: the mean is over all positions, and what is constant has no interval") {
  const std::vector<double> ones(300, 1.0), threes(100, 3.0);
  const auto equal = kvlab::report::block_bootstrap({ones, ones});
  CHECK(equal.mean == 1);
  CHECK(equal.low == 1);
  CHECK(equal.high == 1);
  // 300 positions of 1 and 100 of 3; a resample draws either passage twice, or both.
  const auto mixed = kvlab::report::block_bootstrap({ones, threes});
  CHECK(mixed.mean == Approx(1.5));
  CHECK(mixed.low == 1);
  CHECK(mixed.high == 3);
}

TEST_CASE("blocks: neighbours that move together widen the interval") {
  std::vector<double> alike, mixed;
  for (int i = 0; i < 2048; ++i) {
    alike.push_back(i / 128 % 2);
    mixed.push_back(i % 2);
  }
  const auto wide = kvlab::report::block_bootstrap({alike});
  const auto narrow = kvlab::report::block_bootstrap({mixed});
  CHECK(wide.mean == Approx(0.5));
  CHECK(narrow.low == Approx(0.5));  // every block is alike
  CHECK(narrow.high == Approx(0.5));
  // Sixteen blocks of 0 or 1: half the mean's 95% range is near 1.96·0.5/√16.
  CHECK(wide.high - wide.low == Approx(2 * 1.96 * 0.5 / 4).epsilon(0.15));
}
