#include "config/plan.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/error.h"
#include "base/hash.h"
#include "catch.h"
#include "config/experiment_file.h"

using namespace kvlab;
using nlohmann::json;
using Lines = std::vector<std::string>;

namespace {

/// Answers for files that are empty, and for synthetic items from their parameters.
class FakeData {
 public:
  /// Another answer for the capture of this file name.
  config::DatasetInfo& capture(const std::string& file) {
    return captures_.try_emplace(file, standard(file)).first->second;
  }

  config::Plan plan(const config::Experiment& experiment) {
    return config::make_plan(experiment,
                             [&](const config::DatasetItem& item) { return describe(item); });
  }

  int asked = 0;

 private:
  static config::DatasetInfo standard(const std::string& file) {
    config::DatasetInfo info;
    info.kv_heads = 3;
    info.q_heads = 9;
    info.tokens = 2048;
    info.head_dim = 64;
    info.probes = 2048;
    info.dtype = DType::bf16;
    info.layers = {0, 10, 20};
    info.content = sha256(file);
    for (int32_t i = 0; i < 2048; ++i) {
      info.token_ids.push_back(static_cast<int32_t>(std::hash<std::string>{}(file) % 1000) + i * 7);
    }
    return info;
  }

  config::DatasetInfo describe(const config::DatasetItem& item) {
    ++asked;
    if (item.source == "capture") return capture(item.path.filename().string());
    config::DatasetInfo info;
    info.batch = get_int(item.params, "batch");
    info.kv_heads = get_int(item.params, "kv_heads");
    info.q_heads = get_int(item.params, "q_heads");
    info.tokens = get_int(item.params, "tokens");
    info.head_dim = get_int(item.params, "head_dim");
    info.dtype = item.params.at("dtype") == "fp32" ? DType::fp32 : DType::bf16;
    info.uses_seed = item.params.at("pattern") != "constant";
    info.layers = {0};
    info.content = sha256(json(item.params).dump());
    return info;
  }

  std::map<std::string, config::DatasetInfo> captures_;
};

struct Fixture {
  Fixture() {
    for (const char* file : {"eval.h5", "other.h5", "cal.h5"}) folder.write(file, "");
  }

  config::Plan plan(const std::string& text) { return data.plan(folder.load(text)); }

  /// The mistakes that planning finds, without the experiment's own path.
  Lines mistakes(const std::string& text) {
    Lines lines;
    try {
      plan(text);
    } catch (const ConfigError& error) {
      for (const Problem& problem : error.problems()) {
        std::string message = problem.message;
        const std::string path = folder.path().string() + "/";
        for (size_t at = message.find(path); at != std::string::npos; at = message.find(path)) {
          message.erase(at, path.size());
        }
        lines.push_back(message);
      }
    }
    return lines;
  }

  ExperimentFolder folder;
  FakeData data;
};

const std::string kCapture =
    "schema: 1\ndataset: {source: capture, path: eval.h5, layers: [10]}\n"
    "calibration: {source: capture, path: cal.h5}\n";
const std::string kSynthetic =
    "schema: 1\ndataset: {source: synthetic, pattern: gaussian, tokens: 1024}\n";

Lines states(const config::Plan& plan) {
  Lines result;
  for (const config::Row& row : plan.rows) {
    const config::Cell& cell = plan.cells[row.cell];
    result.push_back(cell.state == config::CellState::run        ? "run"
                     : cell.state == config::CellState::excluded ? "excluded: " + cell.reason
                                                                 : "unsupported: " + cell.reason);
  }
  return result;
}

bool says(const Lines& warnings, const std::string& text) {
  return std::any_of(warnings.begin(), warnings.end(), [&](const std::string& warning) {
    return warning.find(text) != std::string::npos;
  });
}

}  // namespace

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
    CHECK(cell.config["method"]["id"] == row.method);
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

TEST_CASE_METHOD(Fixture, "an axis that changes nothing for any method is an error, all of them named") {
  CHECK(mistakes(kCapture + R"(methods: [bf16, kivi]
sweep: {grid: {group: [32, 64], key.bit_reversal: [true, false], calibrate.steps: [1, 2]}}
)") == Lines{"sweep axis 'calibrate.steps' changes nothing for any method listed (bf16, kivi)",
             "sweep axis 'key.bit_reversal' changes nothing for any method listed (bf16, kivi)"} ||
        mistakes(kCapture + R"(methods: [bf16, kivi]
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
)").empty());
  const config::Plan plan =
      this->plan(kCapture + "methods: [kivi]\nsweep: {zip: {group: [32, 64], window.recent: [32, 64]}}\n");
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

TEST_CASE_METHOD(Fixture, "a method with no point left keeps its rows, no method left is an error") {
  const config::Plan plan =
      this->plan(kCapture + "methods: [bf16, {use: kivi, set: {window.recent: 48}}]\n");
  CHECK(states(plan) ==
        Lines{"run",
              "unsupported: window.recent 48 is no multiple of the group of 32 tokens, as "
              "window.flush kivi needs"});
  CHECK(mistakes(kCapture + R"(methods: [kivi, {use: kivi, label: odd, set: {window.recent: 48}}]
exclude: [{when: {method: kivi, layer: 10, dataset: eval}, reason: not today}]
)").front() == "nothing is left to run:");
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
  CHECK(states(plan) == Lines{"run", "excluded: not in the published grid", "excluded: other", "run"});
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

TEST_CASE_METHOD(Fixture, "a synthetic calibration is drawn once, so it makes no cell depend on the seed") {
  const config::Plan plan = this->plan(R"(schema: 1
dataset: {source: synthetic, pattern: constant, head_dim: 64, kv_heads: 3, q_heads: 9}
calibration: {source: synthetic, pattern: gaussian, head_dim: 64, kv_heads: 3, q_heads: 9}
methods: [oscar_cov]
seeds: [1, 2]
)");
  REQUIRE(plan.rows.size() == 1);
  CHECK_FALSE(plan.rows[0].seed_used);
}

TEST_CASE_METHOD(Fixture, "calibration that is missing or does not fit") {
  CHECK(mistakes("schema: 1\ndataset: {source: capture, path: eval.h5}\nmethods: [kivi, optr]\n") ==
        Lines{"method 'optr' needs a calibration set: name one under 'calibration', as in "
              "calibration: {source: capture, path: …}"});
  CHECK(mistakes("schema: 1\ndataset: {source: capture, path: eval.h5}\nmethods: [kivi]\n").empty());

  data.capture("cal.h5").q_heads = 12;
  CHECK(mistakes(kCapture + "methods: [oscar_cov]\n") ==
        Lines{"calibration capture cal.h5 has 12 query heads, 3 KV heads and head dimension 64, "
              "but capture eval.h5 has 9, 3 and 64"});
  CHECK(mistakes(kCapture + "methods: [kivi]\n").empty());

  data.capture("cal.h5").q_heads = 9;
  data.capture("cal.h5").layers = {0};
  CHECK(mistakes(kCapture + "methods: [oscar_cov]\n") ==
        Lines{"calibration capture cal.h5 has no layer 10, which capture eval.h5 is evaluated on"});

  data.capture("cal.h5").layers = {10};
  data.capture("cal.h5").probes = 21;
  CHECK(mistakes(kCapture + "methods: [oscar_cov]\n") ==
        Lines{"calibration capture cal.h5 has 63 query rows a KV head, fewer than the head "
              "dimension 64"});
  data.capture("cal.h5").probes = 22;
  CHECK(mistakes(kCapture + "methods: [oscar_cov]\n").empty());
}

TEST_CASE_METHOD(Fixture, "calibration that is thin says so in every row") {
  const auto warnings = [&] {
    const config::Plan plan = this->plan(kCapture + "methods: [oscar_cov, kivi]\n");
    CHECK(plan.cells[plan.rows[1].cell].warnings.empty());
    return plan.cells[plan.rows[0].cell].warnings;
  };
  CHECK(warnings().empty());
  config::DatasetInfo& cal = data.capture("cal.h5");
  cal.probes = 341;  // x 3 query heads a KV head = 1023 rows
  CHECK(warnings() ==
        Lines{"calibration has 1023 query rows a KV head, fewer than 16 x head dimension = 1024",
              "calibration holds the queries of 341 of its 2048 positions"});
  cal.probes = 342;
  CHECK(warnings() == Lines{"calibration holds the queries of 342 of its 2048 positions"});
  cal.probes = cal.tokens = 1024;
  CHECK(warnings().empty());
  cal.probes = cal.tokens = 1023;
  CHECK(warnings() ==
        Lines{"calibration is 1023 tokens long, less than half of the evaluated 2048"});
}

TEST_CASE_METHOD(Fixture, "calibration that shares text with the evaluation is found") {
  const auto found = [&] {
    const config::Plan plan = this->plan(kCapture + "methods: [oscar_cov]\n");
    const bool warned = says(plan.cells[0].warnings, "calibration shares tokens");
    CHECK((plan.cells[0].config["calibration"]["overlaps_eval"] == "yes") == warned);
    return plan.cells[0].config["calibration"]["overlaps_eval"].get<std::string>();
  };
  auto& cal = data.capture("cal.h5").token_ids;
  auto& eval = data.capture("eval.h5").token_ids;
  std::fill(cal.begin(), cal.end(), 1);
  CHECK(found() == "no");
  std::copy_n(eval.begin() + 1000, 63, cal.begin() + 300);
  CHECK(found() == "no");
  std::copy_n(eval.begin() + 1000, 64, cal.begin() + 300);
  CHECK(found() == "yes");
  cal.clear();
  CHECK(found() == "unknown");
  data.capture("cal.h5").content = data.capture("eval.h5").content;
  CHECK(found() == "yes");
}

TEST_CASE_METHOD(Fixture, "a run of tokens across two sequences is no shared text") {
  config::DatasetInfo& cal = data.capture("cal.h5");
  const auto& eval = data.capture("eval.h5").token_ids;
  cal.batch = 2;
  std::fill(cal.token_ids.begin(), cal.token_ids.end(), 1);
  std::copy_n(eval.begin() + 1000, 64, cal.token_ids.begin() + 992);  // 32 on either side
  CHECK_FALSE(says(this->plan(kCapture + "methods: [oscar_cov]\n").cells[0].warnings, "shares"));
}

TEST_CASE_METHOD(Fixture, "a synthetic calibration on the evaluated passage is found") {
  const auto found = [&](const std::string& passage, const std::string& seed) {
    return this
        ->plan("schema: 1\ndataset: {source: synthetic, tokens: 512}\nmethods: [oscar_cov]\n"
               "calibration: {source: synthetic, tokens: 1024" + passage + "}\nseeds: [" + seed + "]\n")
        .cells[0]
        .config["calibration"]["overlaps_eval"];
  };
  CHECK(found("", "0") == "yes");
  CHECK(found(", passage: 1", "0") == "no");
  CHECK(found("", "1") == "no");
}

TEST_CASE_METHOD(Fixture, "layers that a capture does not hold") {
  CHECK(mistakes("schema: 1\ndataset: {source: capture, path: eval.h5, layers: [1, 10]}\nmethods: "
                 "[kivi]\n") ==
        Lines{"capture eval.h5 has no layer 1 (available: 0, 10, 20)"});
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

TEST_CASE_METHOD(Fixture, "a cell's id depends on what decides its result and on nothing else") {
  const auto id = [&](const std::string& text) { return this->plan(text).cells.at(0).id; };
  const std::string base = kCapture + "methods: [kivi]\n";
  const std::string first = id(base);
  CHECK(first.size() == 32);
  CHECK(first.find_first_not_of("0123456789abcdef") == std::string::npos);
  CHECK(id(base) == first);
  CHECK(id(base + "name: other\noutput: o.h5\n") == first);
  CHECK(id(base + "seeds: [5]\n") == first);
  CHECK(id(base + "measure: [memory, tni, attention, error]\n") == first);
  CHECK(id(kCapture + "methods: [{use: kivi, label: x, set: {key.covariance: paper}}]\n") == first);
  CHECK(id(base + "sweep: {grid: {group: [32]}}\n") == first);
  CHECK(id(base + "measure: [error]\n") != first);
  CHECK(id(base + "probes: {count: 8}\n") != first);
  CHECK(id(kCapture + "methods: [{use: kivi, set: {key.codec.bits: 3}}]\n") != first);
  // Calibration counts where it is used.
  data.capture("cal.h5").content = "another";
  CHECK(id(base) == first);
  const std::string calibrated = id(kCapture + "methods: [oscar_cov]\n");
  data.capture("cal.h5").content = "a third";
  CHECK(id(kCapture + "methods: [oscar_cov]\n") != calibrated);
  data.capture("eval.h5").content = "another";
  CHECK(id(base) != first);
  CHECK(id(kSynthetic + "methods: [kivi]\nseeds: [1]\n") !=
        id(kSynthetic + "methods: [kivi]\nseeds: [2]\n"));
}

TEST_CASE_METHOD(Fixture, "D47: a rotation's content is part of the cell, its place is not") {
  folder.write("r.h5", "one");
  folder.write("copy/r.h5", "one");
  const auto id = [&](const std::string& path) {
    return this->plan(kCapture + "methods: [{use: quarot, set: {key.rotate: 'file:" + path + "'}}]\n")
        .cells.at(0);
  };
  const config::Cell first = id("r.h5");
  CHECK(first.config["method"]["key"]["rotate"] == "file:" + (folder.path() / "r.h5").string());
  CHECK(first.config["method"]["key"]["rotation_sha256"] == sha256("one"));
  CHECK(id("copy/r.h5").id == first.id);
  folder.write("r.h5", "two");
  CHECK(id("r.h5").id != first.id);
}

TEST_CASE_METHOD(Fixture, "the stored configuration of a cell") {
  const config::Plan plan = this->plan(kCapture + R"(methods: [{use: optr, label: mine}]
sweep: {grid: {calibrate.steps: [40, 80]}}
)");
  const json& config = plan.cells[0].config;
  CHECK(config["dataset"]["source"] == "capture");
  CHECK(config["dataset"]["path"] == (folder.path() / "eval.h5").string());
  CHECK(config["dataset"]["sha256"] == sha256("eval.h5"));
  CHECK(config["dataset"]["layer"] == 10);
  CHECK(config["dataset"]["dtype"] == "bf16");
  CHECK(config["method"]["id"] == "optr");
  CHECK(config["method"]["label"] == "mine");
  CHECK(config["method"]["key"]["learned_over"] == "hadamard");
  CHECK(config["method"]["key"]["codec"]["group"] == 64);
  CHECK(config["method"]["requested"]["key.codec.group"] == 128);
  CHECK(config["method"]["window"]["recent"] == 256);
  CHECK(config["method"]["calibrate"]["steps"] == 40);
  CHECK(config["sweep"] == json{{"calibrate.steps", 40}});
  CHECK(config["seed"] == 0);
  CHECK(config["seed_used"] == false);
  CHECK(config["backend"] == "reference");
  CHECK(config["probes"] == json{{"count", 64}, {"placement", "strided"}});
  CHECK(config["calibration"]["path"] == (folder.path() / "cal.h5").string());
  CHECK(config["calibration"]["sha256"] == sha256("cal.h5"));
  CHECK(this->plan(kCapture + "methods: [kivi]\n").cells[0].config["calibration"].is_null());
  CHECK(plan.cells[0].calibration.at(0).layers == std::vector<int64_t>{10});
}

TEST_CASE_METHOD(Fixture, "D09: symmetric codes are recorded with the three levels they use") {
  const config::Plan plan = this->plan(kCapture + "methods: [int2_naive_symmetric, kivi, bf16]\n");
  CHECK(plan.cells[0].config["method"]["levels_used"] == json{{"key", 3}, {"value", 3}});
  CHECK(plan.cells[1].config["method"]["levels_used"] == json{{"key", 4}, {"value", 4}});
  CHECK(plan.cells[2].config["method"]["levels_used"]["key"].is_null());
}

TEST_CASE_METHOD(Fixture, "a dataset may bring its own calibration") {
  const config::Plan plan = this->plan(R"(schema: 1
dataset:
  - {source: capture, path: eval.h5, layers: [0], calibration: {source: capture, path: other.h5}}
  - {source: capture, path: eval.h5, layers: [10]}
calibration: {source: capture, path: cal.h5}
methods: [oscar_cov]
)");
  CHECK(plan.cells[0].calibration.at(0).path.filename() == "other.h5");
  CHECK(plan.cells[1].calibration.at(0).path.filename() == "cal.h5");
}

TEST_CASE_METHOD(Fixture, "backends and measures that cannot be had are refused even if set later") {
  config::Experiment experiment = folder.load(kCapture + "methods: [kivi]\n");
  experiment.backend = "cpu";
  CHECK_THROWS_WITH(data.plan(experiment), "backend cpu is not in this release, only reference is");
  experiment.backend = "gpu";
  CHECK_THROWS_WITH(data.plan(experiment),
                    "'backend' must be one of reference, cpu, cuda, found 'gpu' (did you mean "
                    "'cpu'?)");
}
