#include "report/claims.h"

#include <set>

#include "catch.h"

namespace kvlab::report {
namespace {

constexpr const char* kClaim = R"(claims:
  - id: a
    sentence: s
    source: p
    published: f
    metric: wo_rel
    claimed: lower
    of: {label: x, window.sink: 64}
    over: {key.rotate: none}
)";

std::vector<std::string> mistakes(const std::string& yaml) {
  yaml::Problems problems;
  read_claims(yaml, "c.yaml", problems);
  std::vector<std::string> texts;
  for (const Problem& problem : problems) {
    texts.push_back(std::to_string(problem.line) + ": " + problem.message);
  }
  return texts;
}

std::string replaced(const std::string& from, const std::string& to) {
  std::string text = kClaim;
  text.replace(text.find(from), from.size(), to);
  return text;
}

TEST_CASE("A claim is read as written") {
  yaml::Problems problems;
  const std::vector<Claim> claims = read_claims(kClaim, "c.yaml", problems);
  CHECK(problems.empty());
  REQUIRE(claims.size() == 1);
  CHECK(claims[0].id == "a");
  CHECK(claims[0].claimed == Claimed::lower);
  CHECK(selector_text(claims[0].of) == "label x, window.sink 64");
  CHECK(selector_text(claims[0].over) == "key.rotate none");
  CHECK(claimed_text(claims[0]) == "below 1");
  const auto equal = read_claims(replaced("claimed: lower", "claimed: equal\n    within: 0.02"),
                                 "c.yaml", problems);
  CHECK(problems.empty());
  CHECK(claimed_text(equal[0]) == "within 2% of 1");
}

TEST_CASE("Mistakes in claims have their places") {
  CHECK(mistakes(replaced("metric: wo_rel", "metric: wo_rell")) ==
        std::vector<std::string>{"6: there is no metric 'wo_rell'"});
  CHECK(mistakes(replaced("claimed: lower", "claimed: better")) ==
        std::vector<std::string>{"7: 'claimed' must be higher, lower or equal, found 'better'"});
  CHECK(mistakes(replaced("    source: p\n", "")) ==
        std::vector<std::string>{"2: a claim needs 'source'"});
  CHECK(mistakes(replaced("{key.rotate: none}", "{}")) ==
        std::vector<std::string>{
            "9: 'over' must be a map of a label, recipe keys or sweep axes, found an empty map"});
  CHECK_THAT(mistakes(replaced("source:", "sourse:")).back(), ContainsSubstring("sourse"));
  CHECK(mistakes(replaced("claimed: lower", "claimed: equal")) ==
        std::vector<std::string>{"2: 'within' goes with 'claimed: equal', and with nothing else"});
  CHECK(mistakes(replaced("claimed: lower", "claimed: lower\n    within: 0.1")) ==
        std::vector<std::string>{"8: 'within' goes with 'claimed: equal', and with nothing else"});
  CHECK(mistakes(replaced("claimed: lower", "claimed: equal\n    within: 0")) ==
        std::vector<std::string>{"8: 'within' must be above 0: a share of the ratio"});
  CHECK(mistakes("claims: 3") == std::vector<std::string>{"1: 'claims' must be a list of claims"});
}

TEST_CASE("The shipped claims are well formed") {
  const std::vector<Claim>& claims = published_claims();
  CHECK(claims.size() >= 30);
  for (const Claim& claim : claims) {
    INFO(claim.id);
    CHECK_FALSE(claim.source.empty());
    CHECK(selector_text(claim.of) != selector_text(claim.over));
    // A whole method is compared with a whole method.
    CHECK(claim.of.label.empty() == claim.over.label.empty());
  }
}

}  // namespace
}  // namespace kvlab::report
