#include "catch.h"
#include "config/planning.h"

using namespace kvlab;
using Lines = std::vector<std::string>;

TEST_CASE_METHOD(Fixture,
                 "a synthetic calibration is drawn once, so it makes no cell depend on the seed") {
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
  CHECK(
      mistakes("schema: 1\ndataset: {source: capture, path: eval.h5}\nmethods: [kivi]\n").empty());

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
    CHECK((plan.cells[0].config.at("calibration").at("overlaps_eval") == "yes") == warned);
    return plan.cells[0].config.at("calibration").at("overlaps_eval").get<std::string>();
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
        ->plan(
            "schema: 1\ndataset: {source: synthetic, tokens: 512}\nmethods: [oscar_cov]\n"
            "calibration: {source: synthetic, tokens: 1024" +
            passage + "}\nseeds: [" + seed + "]\n")
        .cells[0]
        .config.at("calibration")
        .at("overlaps_eval");
  };
  CHECK(found("", "0") == "yes");
  CHECK(found(", passage: 1", "0") == "no");
  CHECK(found("", "1") == "no");
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
