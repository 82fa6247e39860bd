#include "report/share.h"

#include <fmt/format.h>

#include <cmath>

#include "catch.h"
#include "report/results_maker.h"
#include "report/table.h"

namespace {

using namespace kvlab;
using namespace kvlab::report;

/// A cell of a needle task: successes of so many trials.
void add_trials(ResultsMaker* maker, const std::string& label, const std::string& dataset,
                int successes, int trials) {
  store::CellResult& cell = maker->add(label, dataset, -1, {});
  for (const char* metric : {"needle_exact", "needle_nll"}) {
    store::Array& blocks = cell.blocks[metric];
    blocks.shape = {1, trials, 2};
    for (int i = 0; i < trials; ++i) {
      blocks.data.insert(blocks.data.end(), {i < successes ? 1.0 : 0.0, 1.0});
    }
    cell.scalars[metric] = static_cast<double>(successes) / trials;
  }
}

/// bf16 and kivi on two tasks, one length, two depths; unequal numbers of trials.
store::Results needles() {
  ResultsMaker maker;
  for (const auto& [task, exact] : {std::pair{"single", 10}, {"keys", 7}}) {
    const std::string place = std::string("needles ") + task + " 000512 ";
    maker.set_method(R"({"kind": "passthrough"})", "{}");
    add_trials(&maker, "bf16", place + "010%", exact, 10);
    add_trials(&maker, "bf16", place + "090% #2", 20, 20);
    maker.set_method(R"({"kind": "uniform", "bits": 2})", "{}");
    add_trials(&maker, "kivi", place + "010%", 0, 10);
    add_trials(&maker, "kivi", place + "090% #2", 15, 20);
  }
  return maker.results;
}

}  // namespace

TEST_CASE("Wilson's interval: its two ends solve |p − share| = z·√(p(1 − p)/n)") {
  for (const auto& [share, n] : {std::pair{0.5, 30.0}, {0.0, 30.0}, {1.0, 10.0}, {0.9, 10.0}}) {
    CAPTURE(share, n);
    const auto [low, high] = wilson(share, n);
    for (const double p : {low, high}) {
      if (p > 1e-12 && p < 1 - 1e-12) {
        CHECK(std::abs(p - share) == Approx(1.959963984540054 * std::sqrt(p * (1 - p) / n)));
      }
    }
    CHECK((low <= share && share <= high && low < high));
    if (share == 0) CHECK(low == Approx(0).margin(1e-12));
    if (share == 1) CHECK(high == Approx(1));
  }
}

TEST_CASE("A share pools the trials of its datasets and has Wilson's interval") {
  const auto value = [](TableOptions options) {
    options.value = "needle_exact";
    return table(needles(), options);
  };
  const std::string by_task = value({.rows = "label", .cols = "task,length"});
  CHECK_THAT(by_task, ContainsSubstring("single / 512") && ContainsSubstring("keys / 512"));
  // 30 of 30, 27 of 30 and 15 of 30.
  CHECK_THAT(by_task, ContainsSubstring("1.00 [0.89, 1.00]") &&
                          ContainsSubstring("0.90 [0.74, 0.97]") &&
                          ContainsSubstring("0.50 [0.33, 0.67]"));
  CHECK_THAT(by_task, ContainsSubstring("share of the 30 trials that a value pools"));
  CHECK(by_task.find("±") == std::string::npos);
  CHECK(by_task.find("below 80%") == std::string::npos);
  const std::string by_depth = value({.rows = "label", .cols = "task,depth"});
  CHECK_THAT(by_depth, ContainsSubstring("single / 0.1") && ContainsSubstring("keys / 0.9"));
  CHECK_THAT(by_depth, ContainsSubstring("share of the 10 to 20 trials") &&
                           ContainsSubstring("tells little of a cache: keys / 0.1\n"));
  // Rows of other tasks are over other datasets: none is over fewer than planned.
  const std::string rows = value({.rows = "label,task", .cols = "depth"});
  CHECK(rows.find("†") == std::string::npos);
  CHECK_THAT(rows, ContainsSubstring("tells little of a cache: keys / 0.1\n"));
  CHECK_THAT(value({.rows = "label,task,depth"}),
             ContainsSubstring("tells little of a cache: keys / 0.1\n"));
  const std::string csv = value({.rows = "label", .cols = "depth", .format = "csv"});
  CHECK_THAT(csv, ContainsSubstring("label,depth=0.1,depth=0.1 low,depth=0.1 high,"));
}

TEST_CASE("Best and second include what the trials cannot tell from them") {
  ResultsMaker maker;
  for (const auto& [label, successes] : {std::pair{"a", 20}, {"b", 19}, {"c", 3}}) {
    add_trials(&maker, label, "needles single 000512 050%", successes, 30);
  }
  const auto text = [&] {
    return table(maker.results, {.value = "needle_exact", .format = "markdown", .emphasis = true});
  };
  CHECK_THAT(text(), ContainsSubstring("**0.67 [") && ContainsSubstring("**0.63 [") &&
                         ContainsSubstring("<u>0.10 ["));
  // A depth that is hard for all is no chance: the other one alone tells them apart.
  for (const char* label : {"a", "b", "c"}) {
    add_trials(&maker, label, "needles single 000512 090%", 0, 30);
  }
  CHECK_THAT(text(), ContainsSubstring("**0.33 [") && ContainsSubstring("**0.32 [") &&
                         ContainsSubstring("<u>0.05 ["));
}

TEST_CASE("A trial that several methods took is one trial") {
  const auto text = table(needles(), {.rows = "task", .value = "needle_exact"});
  // Means of 27 and 15 of the same 30 trials: 0.7.
  const auto [low, high] = wilson(0.7, 30);
  CHECK_THAT(text, ContainsSubstring(fmt::format("0.70 [{:.2f}, {:.2f}]", low, high)));
}

TEST_CASE("The likelihood of an answer stands beside the share, resampled") {
  const std::string text = table(needles(), {});
  CHECK_THAT(text, ContainsSubstring("needle_exact") && ContainsSubstring("needle_nll") &&
                       ContainsSubstring("±") && ContainsSubstring(" [0."));
  CHECK_THAT(text, ContainsSubstring("4 passages are too few"));
  CHECK_THAT(table(needles(), {.rows = "label,dataset", .value = "needle_nll"}),
             ContainsSubstring("1 passage is too few"));
}

TEST_CASE("Only needle tasks have a task, a length and a depth") {
  CHECK_THROWS_WITH(table(small_results(), {.cols = "depth"}),
                    ContainsSubstring("no column 'depth'"));
  ResultsMaker maker;
  add_trials(&maker, "kivi", "my own facts", 3, 10);
  CHECK_THROWS_WITH(table(maker.results, {.cols = "depth", .value = "needle_exact"}),
                    ContainsSubstring("no column 'depth'"));
}
