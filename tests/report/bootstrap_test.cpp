#include "report/bootstrap.h"

#include <cmath>

#include "catch.h"

namespace kvlab::report {
namespace {

/// Numbers that nothing is known of by position.
std::vector<Sampled> whole(const std::vector<double>& values) {
  std::vector<Sampled> numbers;
  for (const double value : values) numbers.push_back({.value = value, .replicates = {}});
  return numbers;
}

TEST_CASE("Equal passages leave no doubt") {
  const Interval interval = bootstrap(whole(std::vector<double>(16, -0.5)));
  CHECK(interval.mean == -0.5);
  CHECK(interval.low == -0.5);
  CHECK(interval.high == -0.5);
  CHECK(interval.p == Approx(2.0 / 10001));
}

TEST_CASE("Two passages: the resampled means are the four that there are") {
  // {0, 1} gives 0, ½, ½, 1: a quarter of the means lies at or below zero.
  const Interval interval = bootstrap(whole({0, 1}));
  CHECK(interval.mean == 0.5);
  CHECK(interval.low == 0);
  CHECK(interval.high == 1);
  CHECK(interval.p == Approx(0.5).margin(0.03));
}

TEST_CASE("The interval of many passages is that of a normal mean") {
  // ±1 alternating about 0.2: standard error of the mean 1/√400 = 0.05.
  std::vector<double> passages;
  for (int i = 0; i < 400; ++i) passages.push_back(0.2 + (i % 2 == 0 ? 1 : -1));
  const Interval interval = bootstrap(whole(passages));
  CHECK(interval.mean == Approx(0.2));
  CHECK(interval.low == Approx(0.2 - 1.96 * 0.05).margin(0.005));
  CHECK(interval.high == Approx(0.2 + 1.96 * 0.05).margin(0.005));
}

TEST_CASE("With a margin the question is whether the mean lies within it") {
  CHECK(bootstrap(whole(std::vector<double>(16, 0.01)), 0.02).p ==
        Approx(2.0 / 10001));  // all inside
  CHECK(bootstrap(whole(std::vector<double>(16, -0.05)), 0.02).p ==
        Approx(2.0 / 10001));  // all outside
  // {0, 1} about a margin of ¾: a quarter of the means lies outside.
  CHECK(bootstrap(whole({0, 1}), 0.75).p == Approx(0.5).margin(0.03));
  CHECK(bootstrap(whole({0, -1}), 0.75).p == Approx(0.5).margin(0.03));
}

TEST_CASE("The same passages give the same interval") {
  const std::vector<double> passages = {0.3, -0.1, 0.7, 0.2};
  const Interval first = bootstrap(whole(passages));
  const Interval second = bootstrap(whole(passages));
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

/// A cell whose metric of one head has these sums over blocks.
store::CellResult cell_of(const std::string& metric, double value,
                          const std::vector<std::pair<double, double>>& sums) {
  store::CellResult cell;
  cell.scalars[metric] = value;
  store::Array& array = cell.blocks[metric];
  array.shape = {1, static_cast<int64_t>(sums.size()), 2};
  for (const auto& [over, under] : sums) array.data.insert(array.data.end(), {over, under});
  return cell;
}

TEST_CASE("Blocks: a constant has no interval, one that moves by blocks has that of its blocks") {
  std::vector<std::pair<double, double>> equal(16, {64, 128}), apart;
  for (int i = 0; i < 16; ++i) apart.emplace_back(i % 2 * 128, 128);
  const Sampled steady = sampled(cell_of("attn_kl", 0.5, equal), "attn_kl");
  REQUIRE(steady.replicates.size() == 500);
  CHECK(bootstrap({steady}).low == 0.5);
  CHECK(bootstrap({steady}).high == 0.5);
  // Sixteen blocks of 0 or 1: half the mean's 95% range is near 1.96·0.5/√16.
  const Interval wide = bootstrap({sampled(cell_of("attn_kl", 0.5, apart), "attn_kl")});
  CHECK(wide.mean == 0.5);
  CHECK(wide.high - wide.low == Approx(2 * 1.96 * 0.5 / 4).epsilon(0.15));
}

TEST_CASE("Blocks: a ratio of norms is the root of a ratio of sums, other metrics are the ratio") {
  const std::vector<std::pair<double, double>> sums(8, {1, 4});
  for (const auto& [metric, value] :
       {std::pair{"wo_rel", 0.5}, {"out_rel_k", 0.5}, {"k_nmse", 0.25}}) {
    CAPTURE(metric);
    for (const double one : sampled(cell_of(metric, value, sums), metric).replicates) {
      CHECK(one == value);
    }
  }
}

TEST_CASE("Blocks: numbers of one passage are of the same draws, so a difference is paired") {
  std::vector<std::pair<double, double>> sums, double_sums;
  for (int i = 0; i < 8; ++i) {
    sums.emplace_back(i, 8);
    double_sums.emplace_back(2 * i, 8);
  }
  const Sampled one = sampled(cell_of("attn_kl", 28.0 / 64, sums), "attn_kl");
  const Sampled two = sampled(cell_of("attn_kl", 56.0 / 64, double_sums), "attn_kl");
  const auto over = [](const std::vector<double>& both) { return both[0] / both[1]; };
  const Sampled ratio = Sampled::of(over, {&two, &one});
  CHECK(bootstrap({ratio}).low == Approx(2));
  CHECK(bootstrap({ratio}).high == Approx(2));
  const Interval alone = bootstrap({one});
  CHECK(alone.low < alone.high);
  // What is not known by position stands for itself.
  const Sampled flat{.value = 1, .replicates = {}};
  CHECK(Sampled::of(over, {&one, &flat}).replicates == one.replicates);
}

TEST_CASE("Blocks widen the interval of passages") {
  std::vector<std::pair<double, double>> apart;
  for (int i = 0; i < 8; ++i) apart.emplace_back(i % 2, 1);
  std::vector<Sampled> flat, uneven;
  for (int passage = 0; passage < 16; ++passage) {
    flat.push_back({.value = 0.5, .replicates = {}});
    uneven.push_back(sampled(cell_of("attn_kl", 0.5, apart), "attn_kl"));
  }
  CHECK(bootstrap(flat).high == 0.5);
  const Interval wide = bootstrap(uneven);
  // 128 blocks in all.
  CHECK(wide.high - wide.low == Approx(2 * 1.96 * 0.5 / std::sqrt(128)).epsilon(0.15));
}

}  // namespace
}  // namespace kvlab::report
