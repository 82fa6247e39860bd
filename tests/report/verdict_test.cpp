#include "report/verdict.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "catch.h"
#include "report/results_maker.h"

namespace kvlab::report {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// "The rounded zero is worse than the float zero", by recipe.
Claim grid_claim(bool higher = true) {
  return {
      .id = "grid",
      .sentence = "s",
      .source = "p",
      .published = "f",
      .metric = "wo_rel",
      .claimed = higher ? Claimed::higher : Claimed::lower,
      .of = {.label = {},
             .settings = {{"key.codec.grid", "rounded_zero"},
                          {"value.codec.grid", "rounded_zero"}}},
      .over = {.label = {},
               .settings = {{"key.codec.grid", "float_zero"}, {"value.codec.grid", "float_zero"}}}};
}

std::string codec(const std::string& grid, int group = 32) {
  return R"({"kind": "uniform", "group": )" + std::to_string(group) + R"(, "grid": ")" + grid +
         R"("})";
}

constexpr const char* kWindow = R"({"sink": 0, "recent": 128, "flush": "full"})";

/// Two layers a passage of both grids, in the ratio that `ratio` gives.
store::Results two_grids(int passages, const std::function<double(int passage, int layer)>& ratio) {
  ResultsMaker maker;
  for (int passage = 0; passage < passages; ++passage) {
    const std::string name = "p" + std::to_string(100 + passage);
    for (int layer = 0; layer < 2; ++layer) {
      maker.set_method(codec("float_zero"), kWindow);
      maker.add("float", name, layer, {{"wo_rel", 0.1}});
      maker.set_method(codec("rounded_zero"), kWindow);
      maker.add("rounded", name, layer, {{"wo_rel", 0.1 * ratio(passage, layer)}});
    }
  }
  return maker.results;
}

Finding judged(const store::Results& results, const Claim& claim) {
  return judge(results, {claim}).front();
}

TEST_CASE("A difference in the claimed direction is upheld, in the other reversed") {
  const store::Results results = two_grids(16, [](int, int) { return 2; });
  const Finding upheld = judged(results, grid_claim(true));
  CHECK(upheld.verdict == "upheld");
  CHECK(upheld.reason.empty());
  CHECK(upheld.effect == Approx(std::log(2.0)));
  CHECK(upheld.low == Approx(std::log(2.0)));
  CHECK(upheld.passages == 16);
  CHECK(upheld.layers == 2);
  CHECK(upheld.pairs == 32);
  CHECK(upheld.differing.empty());
  CHECK(judged(results, grid_claim(false)).verdict == "reversed");
  const store::Results halved = two_grids(16, [](int, int) { return 0.5; });
  CHECK(judged(halved, grid_claim(true)).verdict == "reversed");
  CHECK(judged(halved, grid_claim(false)).verdict == "upheld");
}

TEST_CASE("An interval that covers a ratio of 1 decides nothing") {
  const Finding finding = judged(
      two_grids(20, [](int passage, int) { return passage % 2 == 0 ? 2 : 0.5; }), grid_claim());
  CHECK(finding.verdict == "undecided");
  CHECK(finding.reason == "not distinguishable: the interval covers a ratio of 1");
  CHECK(finding.effect == Approx(0).margin(1e-12));
  CHECK(finding.low < 0);
  CHECK(finding.high > 0);
}

TEST_CASE("Equality is upheld inside its margin, reversed outside, undecided across its edge") {
  Claim claim = grid_claim();
  claim.claimed = Claimed::equal;
  claim.within = 0.05;
  CHECK(judged(two_grids(16, [](int, int) { return 1.02; }), claim).verdict == "upheld");
  CHECK(judged(two_grids(16, [](int, int) { return 0.98; }), claim).verdict == "upheld");
  CHECK(judged(two_grids(16, [](int, int) { return 1.2; }), claim).verdict == "reversed");
  CHECK(judged(two_grids(16, [](int, int) { return 0.8; }), claim).verdict == "reversed");
  const Finding across =
      judged(two_grids(16, [](int passage, int) { return passage % 2 == 0 ? 1.2 : 0.9; }), claim);
  CHECK(across.verdict == "undecided");
  CHECK(across.reason == "not distinguishable: the interval crosses the edge of the margin");
}

TEST_CASE("Too few passages decide nothing, the effect is there all the same") {
  const Finding finding = judged(two_grids(15, [](int, int) { return 2; }), grid_claim());
  CHECK(finding.verdict == "undecided");
  CHECK(finding.reason == "15 passages, a verdict needs 16");
  CHECK(finding.effect == Approx(std::log(2.0)));
  CHECK(std::isnan(finding.low));
  CHECK(std::isnan(finding.p));
}

TEST_CASE("Layers are averaged, not resampled: many of them make no passage") {
  // Layers of a passage differ by a factor of 16, their geometric mean is 2 everywhere.
  const auto ratio = [](int, int layer) { return layer == 0 ? 8 : 0.5; };
  const Finding finding = judged(two_grids(16, ratio), grid_claim());
  CHECK(finding.verdict == "upheld");
  CHECK(finding.low == Approx(finding.high));
  CHECK(judged(two_grids(8, ratio), grid_claim()).verdict == "undecided");
}

TEST_CASE("Missing rows are named") {
  const store::Results results = two_grids(16, [](int, int) { return 2; });
  Claim claim = grid_claim();
  claim.of = {.label = {}, .settings = {{"key.codec.grid", "symmetric"}}};
  CHECK(judged(results, claim).reason == "no row has key.codec.grid symmetric");
  CHECK(judged(results, claim).verdict == "undecided");
  claim.over = {.label = "kivi", .settings = {}};
  CHECK(judged(results, claim).reason ==
        "no row has key.codec.grid symmetric; no row has label kivi");

  store::Results failed = results;
  for (auto& [id, cell] : failed.cells) {
    if (cell.config.find("rounded") != std::string::npos) cell.status = "failed";
  }
  CHECK_THAT(judged(failed, grid_claim()).reason, ContainsSubstring("none of the 32 rows with"));
  for (auto& [id, cell] : failed.cells) cell.status = "complete", cell.code_version = "bb22";
  CHECK_THAT(judged(failed, grid_claim()).reason, ContainsSubstring("is complete"));
}

TEST_CASE("One factor at a time: rows that differ in more are no pair") {
  ResultsMaker maker;
  maker.set_method(codec("float_zero", 32), kWindow);
  maker.add("a", "p", 0, {{"wo_rel", 1}});
  maker.set_method(codec("rounded_zero", 64), kWindow);
  maker.add("b", "p", 0, {{"wo_rel", 3}});
  CHECK_THAT(judged(maker.results, grid_claim()).reason,
             ContainsSubstring("agree in everything else"));

  // Whole methods are compared as they are, and the differences named.
  Claim whole = grid_claim();
  whole.of = {.label = "b", .settings = {}};
  whole.over = {.label = "a", .settings = {}};
  const Finding finding = judged(maker.results, whole);
  CHECK(finding.effect == Approx(std::log(3.0)));
  CHECK(finding.differing == std::vector<std::string>{"key.codec.grid", "key.codec.group",
                                                      "value.codec.grid", "value.codec.group"});
}

TEST_CASE("Pairs share their sweep point, but for an axis that the claim names") {
  ResultsMaker maker({"group", "window.recent"});
  for (const int64_t group : {32, 64}) {
    for (const int64_t recent : {0, 128}) {
      maker.set_method(codec("float_zero", static_cast<int>(group)),
                       R"({"sink": 0, "recent": )" + std::to_string(recent) + "}");
      maker.add("a", "p", 0, {{"wo_rel", static_cast<double>(group * (recent + 1))}},
                {group, recent});
    }
  }
  Claim claim = grid_claim();
  claim.of = {.label = {}, .settings = {{"window.recent", 128}}};
  claim.over = {.label = {}, .settings = {{"window.recent", 0}}};
  const Finding by_recipe = judged(maker.results, claim);
  CHECK(by_recipe.pairs == 2);
  CHECK(by_recipe.effect == Approx(std::log(129.0)));

  claim.of = {.label = "a", .settings = {{"group", 64}}};
  claim.over = {.label = "a", .settings = {{"group", 32}}};
  const Finding by_axis = judged(maker.results, claim);
  CHECK(by_axis.pairs == 2);
  CHECK(by_axis.effect == Approx(std::log(2.0)));
}

TEST_CASE("Seeds are paired where both rows use them") {
  ResultsMaker maker;
  const auto add = [&](const std::string& label, int64_t seed, bool used, double value) {
    maker.add(label, "p", 0, {{"wo_rel", value}});
    maker.results.rows.back().seed = seed;
    maker.results.rows.back().seed_used = used;
  };
  add("fixed", 0, false, 1);
  for (const int64_t seed : {0, 1}) {
    add("a", seed, true, 2);
    add("b", seed, true, 4);
  }
  Claim claim = grid_claim();
  claim.of = {.label = "b", .settings = {}};
  claim.over = {.label = "a", .settings = {}};
  CHECK(judged(maker.results, claim).pairs == 2);
  claim.over = {.label = "fixed", .settings = {}};
  CHECK(judged(maker.results, claim).pairs == 2);
}

TEST_CASE("What has no effect by algebra compares nothing") {
  store::Results results = two_grids(16, [](int, int) { return 1; });
  for (store::SummaryRow& row : results.rows) {
    if (row.label == "rounded") {
      row.warnings = {"key.codec.grid: no effect by algebra: a reason",
                      "value.codec.grid: no effect by algebra: a reason"};
    }
  }
  CHECK(judged(results, grid_claim()).reason ==
        "what it compares has no effect by algebra in any pair of rows");
  // Of two keys in which the rows differ, one has an effect: the pair compares that.
  for (store::SummaryRow& row : results.rows) {
    if (!row.warnings.empty()) row.warnings.pop_back();
  }
  CHECK(judged(results, grid_claim()).pairs == 32);
}

TEST_CASE("A pool, an eviction or a stage that one row alone has is a difference") {
  const auto [section, settings] = GENERATE(table<std::string, std::string>(
      {{"protect", R"({"kind": "low_norm", "tokens": 5})"},
       {"evict", R"({"kind": "streaming", "sink": 4, "recent": 1020})"},
       {"key", R"({"space": "pre_rope"})"},
       {"key", R"({"reorder": "calibrated"})"},
       {"value", R"({"basis": "query_pca"})"}}));
  CAPTURE(section, settings);
  store::Results results = two_grids(16, [](int, int) { return 2; });
  for (auto& [id, cell] : results.cells) {
    nlohmann::json config = nlohmann::json::parse(cell.config);
    if (config["method"]["id"] != "rounded") continue;
    config["method"][section].update(nlohmann::json::parse(settings));
    cell.config = config.dump();
  }
  CHECK_THAT(judged(results, grid_claim()).reason, ContainsSubstring("agree in everything else"));
  Claim whole = grid_claim();
  whole.of = {.label = "rounded", .settings = {}};
  whole.over = {.label = "float", .settings = {}};
  CHECK(judged(results, whole).differing.size() == 3);  // both grids and this
}

TEST_CASE("Pairs without a ratio are left out and counted") {
  const auto ratio = [](int passage, int) {
    return passage == 0 ? 0 : passage == 1 ? kInfinity : 2;
  };
  const Finding finding = judged(two_grids(18, ratio), grid_claim());
  CHECK(finding.left_out == 4);
  CHECK(finding.passages == 16);
  CHECK(finding.verdict == "upheld");
  Claim unmeasured = grid_claim();
  unmeasured.metric = "attn_kl";
  CHECK(judged(two_grids(2, ratio), unmeasured).reason ==
        "attn_kl has no ratio in any of the 4 pairs: zero or not measured");
}

TEST_CASE("Two names of one configuration count once") {
  store::Results results = two_grids(1, [](int, int) { return 2; });
  store::SummaryRow twin = results.rows.back();
  twin.label = "the same again";
  results.rows.push_back(twin);
  CHECK(judged(results, grid_claim()).pairs == 2);
}

TEST_CASE("Holm's correction takes a verdict that stands only alone") {
  // A mean of 0.35 with a standard error of 0.17 is distinct at 5%, not at 5%/20.
  const store::Results results =
      two_grids(36, [](int passage, int) { return std::exp(0.35 + (passage % 2 == 0 ? 1 : -1)); });
  CHECK(judged(results, grid_claim()).verdict == "upheld");
  const Finding among = judge(results, std::vector<Claim>(20, grid_claim())).front();
  CHECK(among.verdict == "undecided");
  CHECK_THAT(among.reason, ContainsSubstring("corrected for 20 claims"));
  CHECK(among.low > 0);
}

TEST_CASE("The order of rows changes nothing") {
  store::Results results =
      two_grids(17, [](int passage, int layer) { return 1 + 0.1 * passage + layer; });
  const std::string before = findings_json(judge(results, {grid_claim()})).dump();
  std::reverse(results.rows.begin(), results.rows.end());
  CHECK(findings_json(judge(results, {grid_claim()})).dump() == before);
}

TEST_CASE("Texts and pairs of labels are told apart, and what a pooled effect hides is said") {
  // One group size has a ratio of 4, the other of ½; one text has twice the ratio.
  ResultsMaker maker;
  for (int passage = 0; passage < 16; ++passage) {
    const std::string text = passage < 8 ? "Austen" : "jargon";
    for (const int group : {32, 64}) {
      const double ratio = (group == 32 ? 4 : 0.5) * (passage < 8 ? 1 : 2);
      for (const char* grid : {"float_zero", "rounded_zero"}) {
        maker.set_method(codec(grid, group), kWindow);
        const bool is_float = std::string(grid) == "float_zero";
        maker.add(std::string(is_float ? "float " : "rounded ") + std::to_string(group),
                  "p" + std::to_string(100 + passage), 0,
                  {{"wo_rel", is_float ? 0.1 : 0.1 * ratio}});
        maker.results.rows.back().text = text;
      }
    }
  }
  const Finding finding = judged(maker.results, grid_claim());
  CHECK(finding.verdict == "upheld");
  CHECK(finding.passages == 16);
  REQUIRE(finding.by_text.size() == 2);
  CHECK(finding.by_text[0].name == "Austen");
  CHECK(finding.by_text[0].passages == 8);
  CHECK(finding.by_text[0].effect == Approx(std::log(2) / 2));
  CHECK(std::isnan(finding.by_text[0].low));  // eight passages of one number each
  CHECK(finding.by_text[1].effect == Approx(std::log(2) * 3 / 2));
  REQUIRE(finding.by_rows.size() == 2);
  CHECK(finding.by_rows[0].name == "rounded 32 over float 32");
  CHECK_FALSE(is_flipped(finding.by_rows[0], finding));
  CHECK(finding.by_rows[1].effect == Approx(-std::log(2) / 2));
  CHECK(is_flipped(finding.by_rows[1], finding));
  CHECK_THAT(findings_text({finding}),
             ContainsSubstring("pooled over 2 pairs of labels, each by itself:\n") &&
                 ContainsSubstring("rounded 64 over float 64: 0.7071 (") &&
                 ContainsSubstring("the other way round"));
  CHECK(findings_json({finding})[0]["by_rows"][1]["flipped"] == true);
}

TEST_CASE("Findings as text and as JSON") {
  Claim missing = grid_claim();
  missing.id = "missing";
  missing.of = {.label = "kivi", .settings = {}};
  missing.over = {.label = "float", .settings = {}};
  const std::vector<Finding> findings =
      judge(two_grids(2, [](int, int) { return 2; }), {grid_claim(), missing});
  CHECK(findings_text(findings) ==
        R"(claim    verdict    ratio  95% interval  passages  layers  pairs
grid     undecided  2.000             -         2       2      4
missing  undecided      -             -         0       0      0

ratio: geometric mean over pairs of rows, then passages; intervals resample passages and, where
the metric is known by position, blocks of 128 positions within them;
verdicts need 16 passages and hold after Holm's correction

grid: s
  p: f
  wo_rel of (key.codec.grid rounded_zero, value.codec.grid rounded_zero) over (key.codec.grid float_zero, value.codec.grid float_zero), claimed above 1
  undecided: 2 passages, a verdict needs 16

missing: s
  p: f
  wo_rel of (label kivi) over (label float), claimed above 1
  undecided: no row has label kivi
)");
  const nlohmann::ordered_json json = findings_json(findings);
  CHECK(json[0]["ratio"] == Approx(2.0));
  CHECK(json[0]["interval"].dump() == "[null,null]");
  CHECK(json[1]["effect"].is_null());
  CHECK(json[1]["reason"] == "no row has label kivi");
}

}  // namespace
}  // namespace kvlab::report
