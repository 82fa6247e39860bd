#include "report/difference.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "catch.h"
#include "report/results_maker.h"

namespace kvlab::report {
namespace {

/// One label on so many passages of two layers; wo_rel and attn_top1.
store::Results passages(int64_t count, double error, double agreement = 0.5) {
  ResultsMaker maker;
  for (int64_t i = 0; i < count; ++i) {
    for (const int64_t layer : {2, 10}) {
      const double own = 0.001 * static_cast<double>(i * layer);
      store::CellResult& cell = maker.add("kivi", "text" + std::to_string(i), layer,
                                          {{"wo_rel", error + own}, {"attn_top1", agreement}});
      nlohmann::json config = nlohmann::json::parse(cell.config);
      config["dataset"]["sha256"] = "text" + std::to_string(i);
      cell.config = config.dump();
    }
  }
  return maker.results;
}

const Change& change_of(const Difference& difference, const std::string& metric) {
  const auto found = std::find_if(difference.changes.begin(), difference.changes.end(),
                                  [&](const Change& change) { return change.metric == metric; });
  REQUIRE(found != difference.changes.end());
  return *found;
}

std::string error_of(const store::Results& a, const store::Results& b, const Allowed& allowed) {
  try {
    difference(a, b, allowed, {});
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST_CASE("Cells are paired by what they are of, whatever their order and their ids") {
  const store::Results a = passages(2, 0.2);
  store::Results b = passages(2, 0.2);
  std::reverse(b.rows.begin(), b.rows.end());
  b.cells["cell3"].scalars["wo_rel"] += 0.05;  // text1, layer 10
  const Difference found = difference(a, b, {}, {{"wo_rel", 0.04, false}, {"wo_rel", 0.1, true}});
  const Change& change = change_of(found, "wo_rel");
  CHECK(change.cells == 4);
  CHECK(change.passages == 2);
  CHECK(change.b - change.a == Approx(0.05 / 4));
  CHECK(change.worst == Approx(0.05));
  CHECK(change.worst_cell == "text1, layer 10");
  CHECK(change.worst_share == Approx(0.05 / 0.21));
  CHECK(std::isnan(change.low));  // too few passages
  REQUIRE(found.failures.size() == 2);
  CHECK(found.failures[0] == "kivi got worse by 0.05 in text1, layer 10, more than 0.04: wo_rel");
  CHECK_THAT(found.failures[1], ContainsSubstring("by 23.81% in text1, layer 10, more than 10%"));
  CHECK(difference(a, b, {}, {{"wo_rel", 0.06, false}}).failures.empty());
  // The other way round it got better.
  CHECK(difference(b, a, {}, {{"wo_rel", 0, false}}).failures.empty());
}

TEST_CASE("A limit does not hold where B has no number, or no complete row") {
  const store::Results a = passages(2, 0.2);
  store::Results nan = a;
  nan.cells["cell3"].scalars["wo_rel"] = std::nan("");
  const Difference found = difference(a, nan, {}, {{"wo_rel", 1, false}});
  CHECK(change_of(found, "wo_rel").cells == 3);
  CHECK(change_of(found, "wo_rel").lost == 1);
  REQUIRE(found.failures.size() == 1);
  CHECK_THAT(found.failures[0], ContainsSubstring("kivi got worse by inf in text1, layer 10"));
  CHECK(found.notes == std::vector<std::string>{
                           "kivi: wo_rel is no number in 1 cell of B, as in text1, layer 10"});
  CHECK(difference(nan, a, {}, {{"wo_rel", 1, false}}).failures.empty());

  store::Results failed = a;
  failed.cells["cell3"].status = "failed";
  store::Results shorter = a;
  shorter.rows.pop_back();
  for (const store::Results& b : {failed, shorter}) {
    const Difference lost = difference(a, b, {}, {{"wo_rel", 1, false}});
    REQUIRE(lost.failures.size() == 1);
    CHECK(lost.failures[0] ==
          "1 row of A has no complete partner in B, so no limit is known to hold there");
    CHECK(difference(a, b, {}, {}).failures.empty());
    CHECK(difference(b, a, {}, {{"wo_rel", 1, false}}).failures.empty());
  }
}

TEST_CASE("Of a metric in which more is better, less is worse") {
  const Difference found =
      difference(passages(1, 0.2, 0.9), passages(1, 0.2, 0.8), {}, {{"attn_top1", 0.05, false}});
  CHECK(change_of(found, "attn_top1").worst == Approx(0.1));
  CHECK(found.failures.size() == 1);
  CHECK(difference(passages(1, 0.2, 0.8), passages(1, 0.2, 0.9), {}, {{"attn_top1", 0, false}})
            .failures.empty());
}

TEST_CASE("An interval resamples the passages of a difference and holds its mean") {
  store::Results b = passages(16, 0.2);
  double by = 0;
  for (auto& [id, cell] : b.cells) {
    cell.scalars["wo_rel"] += by;
    by += 0.001;
  }
  const Change change = change_of(difference(passages(16, 0.2), b, {}, {}), "wo_rel");
  CHECK(change.low < change.b - change.a);
  CHECK(change.high > change.b - change.a);
  CHECK(change.low > 0);
}

TEST_CASE("One passage under sixteen names is one passage of a difference") {
  store::Results a = passages(16, 0.2);
  for (auto& [id, cell] : a.cells) {
    nlohmann::json config = nlohmann::json::parse(cell.config);
    config["dataset"]["sha256"] = "one";
    cell.config = config.dump();
  }
  const Change change = change_of(difference(a, a, {}, {}), "wo_rel");
  CHECK(change.passages == 1);
  CHECK(std::isnan(change.low));
}

TEST_CASE("What cannot be compared is refused or told") {
  const store::Results a = passages(1, 0.2);
  store::Results b = passages(1, 0.2);
  for (auto& row : b.rows) row.label = "other";
  CHECK_THAT(error_of(a, b, {}), ContainsSubstring("no cell of A has a complete partner in B"));

  b = passages(1, 0.2);
  for (auto& [id, cell] : b.cells) {
    cell.config.replace(cell.config.find("\"text0\""), 7, "\"text9\"");
  }
  CHECK(error_of(a, b, {}) ==
        "the dataset of text0, layer 2 is not the same in both files; --allow inputs compares all "
        "the same");
  CHECK_THAT(difference(a, b, {.inputs = true}, {}).notes.front(),
             ContainsSubstring("inputs differ"));

  b = passages(1, 0.2);
  for (auto& [id, cell] : b.cells) {
    nlohmann::json config = nlohmann::json::parse(cell.config);
    config["probes"] = {{"count", 8}, {"placement", "strided"}};
    cell.config = config.dump();
  }
  CHECK(error_of(a, b, {}) ==
        "the probes of text0, layer 2 are not the same in both files; --allow inputs compares all "
        "the same");
  CHECK(error_of(b, b, {}) == "no error");
  store::Results stretched = b;
  for (auto& [id, cell] : stretched.cells) {
    nlohmann::json config = nlohmann::json::parse(cell.config);
    config["dataset"]["tokens"] = 1024;
    cell.config = config.dump();
  }
  CHECK_THAT(error_of(b, stretched, {}), ContainsSubstring("the dataset of text0"));
  CHECK_THAT(difference(b, stretched, {.inputs = true}, {}).notes.front(),
             ContainsSubstring("inputs differ"));

  store::Results on_gpu = passages(1, 0.2);
  for (auto& row : on_gpu.rows) row.backend = "cuda";
  store::Results on_other = on_gpu;
  on_gpu.attributes["gpu"] = "H200";
  on_other.attributes["gpu"] = "L4";
  CHECK(error_of(on_gpu, on_other, {}) ==
        "A was made on 'H200', B on 'L4'; --allow gpu compares all the same");
  CHECK(error_of(on_gpu, on_other, {.gpu = true}) == "no error");
  CHECK(error_of(on_gpu, on_gpu, {}) == "no error");

  b = passages(2, 0.2);
  b.cells["cell0"].status = "failed";
  const Difference found = difference(a, b, {}, {});
  CHECK(found.notes == std::vector<std::string>{"not compared: 2 rows only in B",
                                                "not compared: 1 row complete in one file alone"});
}

TEST_CASE("Text shows what changed, JSON all") {
  store::Results b = passages(1, 0.2);
  b.cells["cell1"].scalars["wo_rel"] = 0.42;
  const Difference found = difference(passages(1, 0.2), b, {}, {});
  CHECK(
      difference_text(found, {}, {}) ==
      R"(label  metric       A       B   B − A  95% interval  B / A  worst cell by  cells  worst cell
-----  ------  ------  ------  ------  ------------  -----  -------------  -----  ---------------
kivi   wo_rel  0.2000  0.3100  0.1100             -  1.550         0.2200      2  text0, layer 10

intervals resample passages and need 16 of them, 4 where a metric is known by position
)");
  CHECK(difference_text(difference(passages(1, 0.2), passages(1, 0.2), {}, {}), {}, {}) ==
        "equal in every cell: 1 of 1 line of a label and a metric\n");
  const auto json = difference_json(found);
  CHECK(json["changes"].size() == 2);
  CHECK(json["changes"][0]["metric"] == "attn_top1");
  CHECK(json["changes"][1]["low"].is_null());
}

TEST_CASE("Columns that only benchmarks have are compared, shown and limited") {
  const auto timed = [](double step, double rate) {
    ResultsMaker maker;
    maker.add("F1", "shape", -1,
              {{"step_us", step}, {"tokens_per_second", rate}, {"used_bytes", 5}});
    return maker.results;
  };
  const Difference found = difference(timed(100, 10), timed(110, 9), {},
                                      {{"step_us", 0.05, true}, {"tokens_per_second", 0.5, false}});
  CHECK(found.failures.size() == 2);
  CHECK_THAT(difference_text(found, {}, {}),
             ContainsSubstring("step_us") && ContainsSubstring("tokens_per_second"));
  CHECK_THAT(difference_text(found, {}, {"used_bytes"}),
             ContainsSubstring("equal in every cell: 1 of 1"));
  const Difference equal = difference(timed(100, 10), timed(100, 10), {}, {{"step_us", 0, false}});
  CHECK_THAT(difference_text(equal, {}, {}), ContainsSubstring("equal in every cell: 2 of 2"));
  const auto message = [&](const std::string& name) {
    try {
      check_metric(equal, name, "--value");
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  CHECK(message("step_us") == "no error");
  CHECK(message("wo_rel") == "--value: 'wo_rel' was not measured in both files");
  CHECK_THAT(message("step_su"),
             ContainsSubstring("there is no metric 'step_su' (did you mean 'step_us'?)"));
}

TEST_CASE("A limit is a metric and a number or a share") {
  CHECK(parse_limit("wo_rel=0.01").most == 0.01);
  const Limit share = parse_limit("decode_us=5%");
  CHECK(share.is_relative);
  CHECK(share.most == Approx(0.05));
  for (const char* wrong : {"wo_rel", "wo_rel=", "wo_rel=x", "wo_rel=-1", "wo_rel=1x"}) {
    CAPTURE(wrong);
    CHECK_THROWS_AS(parse_limit(wrong), Error);
  }
  CHECK_THROWS_AS(difference(passages(1, 0.2), passages(1, 0.2), {}, {{"k_mse", 1, false}}), Error);
}

}  // namespace
}  // namespace kvlab::report
