// Experiments on whole models: what they may say, and the cells they become.
#include <set>

#include "catch.h"
#include "config/planning.h"

using namespace kvlab::config;
using Lines = std::vector<std::string>;

namespace {

/// An experiment's folder with a model and its tokens.
struct ModelFixture : Fixture {
  ModelFixture() {
    std::filesystem::create_directory(folder.path() / "tiny");
    folder.write("text.h5", "");
  }
};

const std::string kModel =
    "schema: 1\ndataset: {source: model, path: tiny, tokens: text.h5, passages: 2, length: 64}\n";

std::set<std::string> ids(const Plan& plan) {
  std::set<std::string> found;
  for (const Cell& cell : plan.cells) found.insert(cell.id);
  return found;
}

}  // namespace

TEST_CASE("a model item is one dataset a passage, on layer -1") {
  ModelFixture fixture;
  const Plan plan = fixture.plan(kModel + "methods: [bf16, kivi]\n");
  REQUIRE(plan.rows.size() == 4);
  CHECK(plan.rows[0].dataset == "text passage 0");
  CHECK(plan.rows[2].dataset == "text passage 1");
  for (const Row& row : plan.rows) CHECK(row.layer == -1);
  const Cell& cell = plan.cells[plan.rows[3].cell];
  CHECK(cell.measure == Lines{"perplexity"});
  CHECK(cell.config["dataset"]["passage"] == 1);
  CHECK(cell.config["dataset"]["evaluation"] == "teacher_forced");
  CHECK(cell.config["dataset"]["prefill"] == "streaming");
  CHECK(cell.config["dataset"]["cache_dtype"] == "bf16");
  CHECK(ids(plan).size() == 4);
}

TEST_CASE("how a model is run decides the cell") {
  ModelFixture fixture;
  std::set<std::string> all;
  size_t count = 0;
  for (const char* setting :
       {"", "evaluation: decode\n", "prefill: exact\n", "cache_dtype: float32\n"}) {
    const auto found = ids(fixture.plan(kModel + "methods: [kivi]\n" + setting));
    count += found.size();
    all.insert(found.begin(), found.end());
  }
  CHECK(count == 8);
  CHECK(all.size() == 8);
}

TEST_CASE("a model's cell holds the recipes of all its layers") {
  ModelFixture fixture;
  const Plan plan = fixture.plan(
      kModel +
      "methods:\n  - kivi\n  - {id: mixed, key: {codec: {axis: token}}, layers: {'0-1': {use: "
      "bf16}}}\n  - {id: plain, key: {codec: {axis: token}}}\n");
  const Cell& mixed = plan.cells[plan.rows[1].cell];
  CHECK(mixed.recipe.layers.size() == 1);
  CHECK(mixed.config["method"]["layers"]["0-1"]["key"]["codec"]["kind"] == "passthrough");
  CHECK(mixed.id != plan.cells[plan.rows[2].cell].id);
}

TEST_CASE("a model's calibration must have each layer that needs it") {
  ModelFixture fixture;
  fixture.data.capture("cal.h5").layers = {0, 2};
  const std::string text =
      kModel + "calibration: {source: capture, path: cal.h5}\nmethods: [oscar_cov]\n";
  CHECK(fixture.mistakes(text) ==
        Lines{"calibration capture cal.h5 has no layer 1, which model tiny is evaluated on"});
  fixture.data.capture("cal.h5").layers = {0, 1, 2};
  CHECK(states(fixture.plan(text)) == Lines{"run", "run"});
}

TEST_CASE("calibration on the evaluated text is told") {
  ModelFixture fixture;
  fixture.data.capture("cal.h5").layers = {0, 1, 2};
  fixture.data.capture("cal.h5").token_ids =
      fixture.plan(kModel + "methods: [kivi]\n").cells.empty()
          ? std::vector<int32_t>{}
          : FakeData().capture("tiny0").token_ids;
  const Plan plan =
      fixture.plan(kModel + "calibration: {source: capture, path: cal.h5}\nmethods: [oscar_cov]\n");
  CHECK(says(plan.cells[plan.rows[0].cell].warnings, "shares tokens"));
}

TEST_CASE("mistakes of model experiments are told at their places") {
  const ModelFixture fixture;
  CHECK(fixture.folder.mistakes(R"(schema: 1
dataset:
  - {source: model, path: tiny, tokens: text.h5, passages: 0, length: 1}
  - {source: model, path: tiny}
  - {source: synthetic}
methods: [kivi]
measure: [perplexity, error]
evaluation: forced
prefill: none
cache_dtype: int8
calibration: {source: model, path: tiny}
)") == Lines{"e.yaml:3:60: 'passages' must be a whole number from 1 to 1048576, found 0",
             "e.yaml:3:71: 'length' must be a whole number of at least 2, found 1",
             "e.yaml:4:5: a model needs 'tokens', a kvlab.tokens/1 file, or 'needles', a "
             "kvlab.needles/1 file, and not both",
             "e.yaml:5:5: an experiment is about whole models or about samples: 'source: model' "
             "cannot stand beside another source",
             "e.yaml:7:23: measure error is of samples; whole models have perplexity, needle, "
             "divergence and memory",
             "e.yaml:8:13: 'evaluation' must be one of teacher_forced, decode, found 'forced'",
             "e.yaml:9:10: 'prefill' must be one of streaming, exact, found 'none'",
             "e.yaml:10:14: 'cache_dtype' must be one of bf16, fp16, float32, found 'int8'",
             "e.yaml:11:23: 'source' must be one of synthetic, capture, found 'model'"});
}
