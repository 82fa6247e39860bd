#include <set>

#include "catch.h"
#include "config/planning.h"

using namespace kvlab;
using nlohmann::json;
using Lines = std::vector<std::string>;

TEST_CASE_METHOD(Fixture, "rows go by dataset, layer, method, point, seed") {
  const config::Plan plan = this->plan(R"(schema: 1
dataset:
  - {source: capture, path: eval.h5, layers: all}
  - {source: synthetic, pattern: gaussian}
methods: [kivi, quarot]
sweep: {grid: {group: [16, 32]}}
seeds: [3, 4]
)");
  CHECK(plan.axes == Lines{"group"});
  REQUIRE(plan.rows.size() == 3 * 2 * 2 + 2 * 2 * 2);
  CHECK(plan.rows[0].dataset == "eval");
  CHECK(plan.rows[0].layer == 0);
  CHECK(plan.rows[0].method == "kivi");
  CHECK(plan.rows[0].sweep == std::vector<json>{16});
  CHECK(plan.rows[1].sweep == std::vector<json>{32});
  CHECK(plan.rows[2].method == "quarot");
  CHECK(plan.rows[4].layer == 10);
  CHECK(plan.rows[12].dataset == "gaussian");
  CHECK(plan.rows[12].seed == 3);
  CHECK(plan.rows[13].seed == 4);
  CHECK(plan.rows[13].seed_used);
  // Captures do not draw: one row, the first seed, not used.
  CHECK(plan.rows[0].seed == 3);
  CHECK_FALSE(plan.rows[0].seed_used);
  CHECK(plan.cells.size() == plan.rows.size());
  CHECK(data.asked == 2);
}

TEST_CASE_METHOD(Fixture, "cells on one sample stand together") {
  const config::Plan plan = this->plan(R"(schema: 1
dataset: {source: synthetic, pattern: gaussian}
methods: [kivi, quarot]
sweep: {grid: {tokens: [256, 512]}}
seeds: [0, 1]
)");
  std::vector<std::pair<json, int64_t>> samples;
  for (const config::Cell& cell : plan.cells) {
    const std::pair sample(cell.dataset.params.at("tokens"), cell.seed);
    if (samples.empty() || samples.back() != sample) samples.push_back(sample);
  }
  CHECK(samples.size() == 4);
  for (const config::Row& row : plan.rows) {
    const config::Cell& cell = plan.cells[row.cell];
    CHECK(cell.dataset.params.at("tokens") == row.sweep[0]);
    CHECK(cell.seed == row.seed);
    CHECK(cell.config.at("method").at("id") == row.method);
  }
}

TEST_CASE_METHOD(Fixture, "points that coincide are computed once and keep their rows") {
  const config::Plan plan = this->plan(kCapture + R"(methods: [bf16, kivi]
sweep: {grid: {group: [32, 64], window.recent: [0, 128]}}
)");
  CHECK(plan.rows.size() == 8);
  CHECK(plan.cells.size() == 1 + 4);
  std::set<size_t> bf16;
  for (size_t i = 0; i < 4; ++i) {
    bf16.insert(plan.rows[i].cell);
    CHECK(plan.rows[i].warnings.empty());
  }
  CHECK(bf16.size() == 1);
}

TEST_CASE_METHOD(Fixture, "many names of one configuration are not all written out for each") {
  std::string methods = "methods:\n";
  for (int i = 0; i < 20; ++i) methods += "  - {use: kivi, label: name" + std::to_string(i) + "}\n";
  for (const config::Row& row : plan(kCapture + methods).rows) {
    REQUIRE(row.warnings.size() == 1);
    CHECK(row.warnings[0].ends_with(" and 13 more, computed once"));
  }
}

TEST_CASE_METHOD(Fixture, "two names of one configuration share a cell, with a warning") {
  const config::Plan plan = this->plan(kCapture + R"(methods: [kivi, kivi_g128]
sweep: {grid: {group: [32, 128]}}
)");
  REQUIRE(plan.rows.size() == 4);
  CHECK(plan.cells.size() == 2);
  CHECK(plan.rows[1].cell == plan.rows[3].cell);
  CHECK(says(plan.rows[1].warnings, "same configuration as kivi_g128, computed once"));
  CHECK(says(plan.rows[3].warnings, "same configuration as kivi, computed once"));
  CHECK(plan.rows[1].method == "kivi");
  CHECK(plan.rows[3].method == "kivi_g128");
}

TEST_CASE_METHOD(Fixture,
                 "an axis that changes nothing for any method is an error, all of them named") {
  CHECK(mistakes(kCapture + R"(methods: [bf16, kivi]
sweep: {grid: {group: [32, 64], key.bit_reversal: [true, false], calibrate.steps: [1, 2]}}
)") == Lines{"sweep axis 'key.bit_reversal' changes nothing for any method listed (bf16, kivi)",
             "sweep axis 'calibrate.steps' changes nothing for any method listed (bf16, kivi)"});
  CHECK(mistakes(kCapture + "methods: [quarot]\nsweep: {grid: {group: [64, 128]}}\n") ==
        Lines{"sweep axis 'group' changes nothing for any method listed (quarot)"});
  CHECK(mistakes(kCapture + "methods: [bf16]\nsweep: {grid: {group: [64]}}\n") ==
        Lines{"sweep axis 'group' changes nothing for any method listed (bf16)"});
  CHECK(mistakes(kSynthetic + "methods: [kivi]\nsweep: {grid: {sink_norm: [1, 2]}}\n") ==
        Lines{"sweep axis 'sink_norm' changes nothing for any dataset listed"});
  CHECK(mistakes(kCapture + "methods: [kivi]\nsweep: {grid: {group: [32]}}\n").empty());
}

TEST_CASE_METHOD(Fixture, "an axis without effect by algebra runs and says so") {
  const config::Plan plan = this->plan(kCapture + R"(methods: [oscar_cov]
sweep: {grid: {key.bit_reversal: [true, false], group: [32, 64]}}
)");
  CHECK(plan.cells.size() == 4);
  for (const config::Row& row : plan.rows) {
    const bool whole_row = row.sweep[1] == 64;
    CHECK(says(row.warnings, "key.bit_reversal: no effect by algebra") == whole_row);
  }
}

TEST_CASE_METHOD(Fixture, "an axis in a zip is judged with the others at each step") {
  CHECK(mistakes(kCapture + R"(methods: [oscar_cov]
sweep: {zip: {key.rotate: [none, covariance_hadamard], key.bit_reversal: [true, false]}}
)")
            .empty());
  const config::Plan plan = this->plan(
      kCapture + "methods: [kivi]\nsweep: {zip: {group: [32, 64], window.recent: [32, 64]}}\n");
  REQUIRE(plan.rows.size() == 2);
  CHECK(plan.rows[1].sweep == std::vector<json>{64, 64});
  CHECK(plan.cells[plan.rows[1].cell].recipe.settings.at("window.recent") == 64);
}

TEST_CASE_METHOD(Fixture, "D25: what a method or the data cannot take is a row with its reason") {
  const config::Plan plan = this->plan(kCapture + R"(methods: [kivi, quarot_windows]
sweep: {grid: {group: [32, 48], window.recent: [64, 128]}}
)");
  CHECK(states(plan) ==
        Lines{"run", "run",
              "unsupported: value: a group of 48 channels does not divide the head dimension 64",
              "unsupported: value: a group of 48 channels does not divide the head dimension 64",
              "run", "run",
              "unsupported: key: a group of 48 channels does not divide the head dimension 64",
              "unsupported: key: a group of 48 channels does not divide the head dimension 64"});
}

TEST_CASE_METHOD(Fixture,
                 "a method with no point left keeps its rows, no method left is an error") {
  const config::Plan plan =
      this->plan(kCapture + "methods: [bf16, {use: kivi, set: {window.recent: 48}}]\n");
  CHECK(states(plan) ==
        Lines{"run",
              "unsupported: window.recent 48 is no multiple of the group of 32 tokens, as "
              "window.flush kivi needs"});
  CHECK(mistakes(kCapture + R"(methods: [kivi, {use: kivi, label: odd, set: {window.recent: 48}}]
exclude: [{when: {method: kivi, layer: 10, dataset: eval}, reason: not today}]
)")
            .front() == "nothing is left to run:");
  CHECK(mistakes(kCapture + R"(methods: [kivi]
exclude: [{when: {method: kivi}, reason: not today}]
)") == Lines{"nothing is left to run:", "kivi on eval: excluded: not today"});
}

TEST_CASE_METHOD(Fixture, "excluded points keep their rows and never stop an equal configuration") {
  const config::Plan plan = this->plan(kCapture + R"(methods: [kivi, kivi_g128]
sweep: {grid: {group: [32, 128]}}
exclude:
  - {when: {method: kivi, group: 128}, reason: "not in the published grid"}
  - {when: {method: kivi_g128, group: [16, 32]}, reason: other}
)");
  CHECK(states(plan) ==
        Lines{"run", "excluded: not in the published grid", "excluded: other", "run"});
  CHECK(plan.rows[1].cell != plan.rows[3].cell);
  CHECK_FALSE(plan.cells[plan.rows[1].cell].config.empty());
}

TEST_CASE_METHOD(Fixture, "an exclusion may name a label, a seed, a layer") {
  const config::Plan plan = this->plan(R"(schema: 1
dataset: {source: synthetic}
methods: [{use: kivi, label: mine}, bf16]
seeds: [0, 1]
exclude: [{when: {method: mine, seed: 1}, reason: r}, {when: {layer: 7}, reason: never}]
)");
  CHECK(states(plan) == Lines{"run", "excluded: r", "run", "run"});
}

TEST_CASE_METHOD(Fixture, "seeds count where data or method draw") {
  const auto seeds = [&](const std::string& text) {
    std::vector<std::pair<int64_t, bool>> result;
    for (const config::Row& row : plan(text + "seeds: [1, 2]\n").rows) {
      result.emplace_back(row.seed, row.seed_used);
    }
    return result;
  };
  using Seeds = std::vector<std::pair<int64_t, bool>>;
  CHECK(seeds(kCapture + "methods: [kivi]\n") == Seeds{{1, false}});
  CHECK(seeds(kCapture + "methods: [{use: kivi, set: {key.rotate: random_orthogonal}}]\n") ==
        Seeds{{1, true}, {2, true}});
  CHECK(seeds(kSynthetic + "methods: [kivi]\n") == Seeds{{1, true}, {2, true}});
  CHECK(seeds("schema: 1\ndataset: {source: synthetic, pattern: constant}\nmethods: [kivi]\n") ==
        Seeds{{1, false}});
}

TEST_CASE_METHOD(Fixture, "mistakes that planning finds have their places") {
  CHECK(places("schema: 1\ndataset:\n  - {source: capture, path: eval.h5, layers: [0, 1]}\n"
               "methods: [kivi]\n") == Lines{"3:50"});
  CHECK(places("schema: 1\ndataset: {source: capture, path: eval.h5}\nmethods: [kivi, optr]\n") ==
        Lines{"3:17"});
  CHECK(places(kSynthetic + "methods: [bf16]\nsweep:\n  grid: {group: [32, 64]}\n") ==
        Lines{"5:10"});
  data.capture("cal.h5").layers = {0};
  CHECK(places(kCapture + "methods: [oscar_cov]\n") == Lines{"3:14"});
}

TEST_CASE_METHOD(Fixture, "a swept shape that cannot be drawn is a row with its reason") {
  const std::string sweep = "methods: [bf16, kivi]\nsweep: {grid: {q_heads: [8, 12, 16]}}\n";
  const config::Plan plan = this->plan(kSynthetic + sweep);
  const std::string reason =
      "unsupported: dataset: q_heads: 12 query heads cannot be shared by 8 key/value heads";
  CHECK(states(plan) == Lines{"run", reason, "run", "run", reason, "run"});
  CHECK(mistakes(kSynthetic + "methods: [kivi]\nsweep: {grid: {q_heads: [9, 12]}}\n").size() == 3);
}

TEST_CASE_METHOD(Fixture, "a grid that no memory holds is refused before it is built") {
  std::string list = "1";
  for (int i = 2; i <= 1000; ++i) list += ", " + std::to_string(i);
  const std::string axes = "sweep: {grid: {group: [" + list + "], window.recent: [" + list +
                           "], window.sink: [" + list + "], key_norm: [" + list + "]}}\n";
  const Lines huge = mistakes(kSynthetic + "methods: [kivi]\n" + axes);
  REQUIRE(huge.size() == 1);
  CHECK(says(huge, "the experiment has more than 200000 rows, one file takes 200000"));
  const std::string seeds = "methods: [kivi]\nsweep: {grid: {group: [" + list + "]}}\nseeds: [0, " +
                            list.substr(0, list.find(", 300")) + "]\n";
  CHECK(says(mistakes(kSynthetic + seeds), "the experiment has up to 300000 rows"));
}

TEST_CASE_METHOD(Fixture, "layers that a capture does not hold") {
  CHECK(mistakes("schema: 1\ndataset: {source: capture, path: eval.h5, layers: [1, 10]}\nmethods: "
                 "[kivi]\n") == Lines{"capture eval.h5 has no layer 1 (available: 0, 10, 20)"});
}

TEST_CASE_METHOD(Fixture, "what a row must say: capped groups, 32 bits") {
  data.capture("eval.h5").dtype = DType::fp32;
  const config::Plan plan = this->plan(kCapture + "methods: [bf16, quarot]\n");
  CHECK(plan.cells[plan.rows[0].cell].warnings ==
        Lines{"a passthrough side reports 32 bits: the data is float32"});
  CHECK(plan.cells[plan.rows[1].cell].warnings.empty());
  CHECK(plan.rows[1].warnings ==
        Lines{"key: the per-token group 128 became the head dimension 64",
              "value: the per-token group 128 became the head dimension 64"});
  data.capture("eval.h5").dtype = DType::bf16;
  CHECK(this->plan(kCapture + "methods: [bf16]\n").cells[0].warnings.empty());
}

TEST_CASE_METHOD(Fixture, "layer rules give a cell its layer's recipe") {
  const config::Plan plan = this->plan(R"(schema: 1
dataset: {source: capture, path: eval.h5}
methods: [{id: mixed, key: {codec: {group: 32}}, layers: {"0-9": {use: bf16}}}, bf16]
)");
  REQUIRE(plan.rows.size() == 6);
  CHECK(plan.cells[plan.rows[0].cell].recipe.settings.at("key.codec.kind") == "passthrough");
  CHECK(plan.rows[0].method == "mixed");
  CHECK(plan.rows[0].cell == plan.rows[1].cell);
  CHECK(plan.rows[2].cell != plan.rows[3].cell);
}

TEST_CASE_METHOD(Fixture,
                 "backends and measures that cannot be had are refused even if set later") {
  config::Experiment experiment = folder.load(kCapture + "methods: [kivi]\n");
  experiment.backend = "gpu";
  CHECK_THROWS_WITH(data.plan(experiment),
                    "'backend' must be one of reference, cpu, cuda, found 'gpu' (did you mean "
                    "'cpu'?)");
  experiment.backend = "reference";
  experiment.measure = {"kernel_time"};
  CHECK_THROWS_WITH(data.plan(experiment),
                    "measure kernel_time needs a backend that has kernels; reference has none");
  experiment.backend = "cpu";
  CHECK(data.plan(experiment).cells.front().config.at("backend") == "cpu");
}

TEST_CASE_METHOD(Fixture, "what a backend cannot take is known to the plan") {
  data.refuse = [](const std::string& backend, const method::Recipe& recipe,
                   const config::DatasetInfo& info) -> std::optional<std::string> {
    if (backend != "cpu" || recipe.id != "kivi" || info.dtype != DType::fp32) return std::nullopt;
    return "no kernel";
  };
  const std::string text = R"(schema: 1
dataset: [{source: synthetic, dtype: fp32}, {source: synthetic, dtype: bf16}]
methods: [kivi, bf16]
)";
  CHECK(states(plan(text)) == Lines{"run", "run", "run", "run"});
  CHECK(states(plan(text + "backend: cpu\n")) ==
        Lines{"unsupported: no kernel", "run", "run", "run"});
  CHECK(mistakes(kSynthetic + "methods: [kivi]\nbackend: cpu\nsweep: {grid: {dtype: [fp32]}}\n")
            .front() == "nothing is left to run:");
}

TEST_CASE_METHOD(Fixture, "exclusions and layers that meet no row are warnings with their place") {
  const auto warnings = [&](const std::string& text) {
    Lines lines;
    for (const std::string& warning : plan(text).warnings) {
      lines.push_back(warning.substr(folder.path().string().size() + 1));
    }
    return lines;
  };
  CHECK(warnings(kCapture + R"(methods:
  - kivi
  - {id: own, key: {rotate: hadamard}, layers: {"0-1": {use: bf16}, "10": {use: kivi}}}
seeds: [0]
exclude:
  - {when: {method: kivi, layer: 3}, reason: none}
  - {when: {method: own}, reason: met}
  - {when: {method: own, layer: 10}, reason: behind another}
)") == Lines{"e.yaml:9:5: the exclusion {\"layer\":3,\"method\":\"kivi\"} leaves nothing out",
             "e.yaml:11:5: the exclusion {\"layer\":10,\"method\":\"own\"} leaves nothing out",
             "e.yaml:6:5: 'layers' of method 'own': no dataset has a layer in 0-1"});
  CHECK(warnings(kCapture + "methods: [kivi, quarot]\n"
                            "exclude: [{when: {method: kivi}, reason: met}]\n")
            .empty());
}

TEST_CASE_METHOD(Fixture, "a dataset is not named by what a sweep changes") {
  const config::Plan swept = plan(R"(schema: 1
dataset: [{source: synthetic, tokens: 512}, {source: synthetic, tokens: 1024, pattern: constant}]
methods: [kivi]
sweep: {grid: {pattern: [gaussian, constant], tokens: [512, 1024]}}
)");
  std::set<std::string> labels;
  for (const config::Row& row : swept.rows) labels.insert(row.dataset);
  CHECK(labels == std::set<std::string>{"synthetic", "synthetic #2"});
}
