#include "published/published.h"

#include "catch.h"

namespace kvlab::published {
namespace {

const std::string kTable = R"(schema: 1
paper: A (arXiv 1)
table: Table 1
title: a title
model: M-8B
certainty: read from
bits: 2.25
metrics:
  a: {unit: "%"}
  b: {unit: "%"}
  mean: {beside: [wo_rel, attn_kl], proxy: "no task is run"}
means: {mean: [a, b]}
rows:
  - {method: plain, label: kivi, values: {a: 1, b: 2.50, mean: 1.75}, spread: {a: 0.5}, at: {group: 32}}
  - {method: other, not_run: "no such method", bits: 3, stored_bits: 3.5, model: M-4B, certainty: conflicting,
     missing: "a figure"}
)";

std::vector<std::string> mistakes(const std::string& text) {
  yaml::Problems problems;
  read(yaml::parse(text, "t.yaml", problems), problems);
  std::vector<std::string> lines;
  for (const Problem& problem : problems) {
    lines.push_back(std::to_string(problem.line) + ": " + problem.message);
  }
  return lines;
}

std::string replaced(const std::string& from, const std::string& to) {
  std::string text = kTable;
  return text.replace(text.find(from), from.size(), to);
}

using Lines = std::vector<std::string>;

TEST_CASE("A published table: a row takes what it does not say from the table") {
  yaml::Problems problems;
  const Table table = read(yaml::parse(kTable, "t.yaml", problems), problems);
  REQUIRE(problems.empty());
  CHECK(table.metrics[2].beside == Lines{"wo_rel", "attn_kl"});
  REQUIRE(table.rows.size() == 2);
  CHECK(table.rows[0].model == "M-8B");
  CHECK(table.rows[0].bits == 2.25);
  CHECK_FALSE(table.rows[0].stored_bits);
  CHECK(table.rows[0].values[1].metric == "b");
  CHECK(table.rows[0].values[1].value == 2.5);
  CHECK(table.rows[0].values[1].text == "2.50");
  CHECK(table.rows[0].at[0].second == 32);
  CHECK(table.rows[1].model == "M-4B");
  CHECK(table.rows[1].bits == 3);
  CHECK(table.rows[1].certainty == "conflicting");
}

TEST_CASE("A published table is read strictly") {
  CHECK(mistakes(kTable).empty());
  CHECK(mistakes(replaced("title:", "titel:")) ==
        Lines{"1: 'title' is missing",
              "4: unknown key 'titel' in the published table (did you "
              "mean 'title'?)"});
  CHECK(mistakes(replaced("read from", "hearsay")).front() ==
        "6: 'certainty' must be one of read from, second-hand, conflicting, found 'hearsay'");
  CHECK(mistakes(replaced("wo_rel", "worel")).front() ==
        "11: there is no metric 'worel' (did you mean 'wo_rel'?)");
  CHECK(mistakes(replaced("b: 2.50", "c: 2.50")).front() ==
        "14: 'c' is none of this table's metrics (did you mean 'a'?)");
  CHECK(mistakes(replaced("[a, b]", "[a, x]")).front() ==
        "12: 'x' is none of this table's metrics (did you mean 'a'?)");
  CHECK(mistakes(replaced("b: 2.50", "b: many")).size() == 1);
  for (const char* number : {".inf", "-.inf", ".nan"}) {
    CAPTURE(number);
    CHECK(mistakes(replaced("b: 2.50", std::string("b: ") + number)) ==
          Lines{std::string("14: 'b' must be finite, found ") + number});
    CHECK(mistakes(replaced("bits: 3,", std::string("bits: ") + number + ",")) ==
          Lines{std::string("15: 'bits' must be finite, found ") + number});
  }
  CHECK(mistakes(replaced("bits: 3.5", "bits: 0")) ==
        Lines{"15: 'stored_bits' must be above 0, found 0"});
  CHECK(mistakes(replaced("bits: 2.25", "bits: -2")) ==
        Lines{"7: 'bits' must be above 0, found -2"});
  CHECK(mistakes(replaced("{a: 0.5}", "{a: -0.5}")) ==
        Lines{"14: a 'spread' must be at least 0, found -0.5"});
  // One sentence where the only value cannot be read.
  CHECK(mistakes(replaced("{a: 1, b: 2.50, mean: 1.75}", "{a: 1e400}")).size() == 1);
  CHECK(mistakes(replaced("model: M-8B\n", "")) == Lines{"13: 'model' is missing"});
  CHECK(mistakes(replaced("     missing: \"a figure\"}", "     note: \"a figure\"}")) ==
        Lines{"15: a published row has either 'values' or, as a sentence, 'missing'"});
  CHECK(mistakes(replaced("label: kivi, ", "")) ==
        Lines{"14: a published row that stands beside an experiment has either the 'label' of its "
              "rows or, as a sentence, 'not_run'"});
}

}  // namespace
}  // namespace kvlab::published
