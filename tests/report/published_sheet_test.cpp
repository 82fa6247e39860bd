#include "report/published_sheet.h"

#include "base/error.h"
#include "catch.h"
#include "report/results_maker.h"
#include "report/table.h"

namespace kvlab::report {
namespace {

const std::string kPublished = R"(methods: [kivi]
published:
  paper: A (arXiv 1)
  table: Table 1
  title: a title
  model: M-8B
  certainty: read from
  metrics:
    score: {unit: "%", beside: wo_rel, proxy: "no task is run"}
  rows:
    - {method: KIVI, label: kivi, values: {score: 39.60}, spread: {score: 1.5}, bits: 2}
    - {method: Ours, label: "U·H·P", values: {score: 41}, bits: 2.28, stored_bits: 2.5, note: "it does not add up"}
    - {method: TQ, not_run: "no such method", values: {score: 40}}
    - {method: gone, label: nothing, missing: "a figure"}
  notes: ["five seeds"]
)";

TEST_CASE("Published, measured here, and what differs") {
  store::Results results = small_results();
  results.experiment_resolved = kPublished;
  CHECK(table(results, {}) ==
        R"(A (arXiv 1), Table 1: a title

published as  label    published: score [%]  here: wo_rel  published: bits  stored by their code: bits  differs
------------  -------  --------------------  ------------  ---------------  --------------------------  -------------
KIVI          kivi               39.60 ±1.5        0.2150                2                           -  model, metric
Ours          U·H·P                      41        0.1150             2.28                         2.5  model, metric
TQ            -                          40             -                -                           -  -
gone          nothing                     -             -                -                           -  -
-             quarot                      -             -                -                           -  -

model: published on M-8B; here austen, jargon
metric: score beside wo_rel (no task is run)
certainty: read from
it does not add up (Ours)
not run here: no such method (TQ)
no published number: a figure (gone)
not measured in this file: it has no such row (gone)
no published number stands beside it (quarot)
five seeds
mean over 2 datasets, 2 layers
backend: reference
data: austen, jargon (head_dim 64, 3 KV heads, 9 query heads, 2048 tokens, bf16, 2 layers)
differs between methods: grid: float_zero (kivi); rounded_zero (U·H·P)
differs between methods: clip: none (kivi); 0.96 (U·H·P)
differs between methods: window: sink 0 recent 128 kivi (kivi); sink 64 recent 256 block (U·H·P)
1 cell unsupported: recent 100 is no multiple of 32 (quarot)
)");
  const std::string csv = table(results, {.format = "csv"});
  CHECK_THAT(csv, ContainsSubstring("KIVI,kivi,39.6,0.215,2,,\"model, metric\"\r\n"));
  // A layout that is asked for is given.
  CHECK_THAT(table(results, {.name = "default"}), ContainsSubstring("label   bits_per_element"));
  CHECK_THAT(table(results, {.value = "wo_rel"}), ContainsSubstring("label   wo_rel  cells"));
}

TEST_CASE("Rows of other data than their neighbours' are no fewer, and no note explains a mark") {
  store::Results results = small_results();
  results.experiment_resolved = kPublished;
  const auto is_of = [](const char* label, const char* dataset) {
    return
        [=](const store::SummaryRow& row) { return row.label == label && row.dataset == dataset; };
  };
  std::erase_if(results.rows, is_of("kivi", "austen"));
  CHECK_THAT(table(results, {}), !ContainsSubstring("†"));
  // A cell that failed makes fewer.
  for (const store::SummaryRow& row : results.rows) {
    if (row.label == "kivi" && row.layer == 2) results.cells.at(row.cell).status = "failed";
  }
  const std::string text = table(results, {});
  CHECK_THAT(text, ContainsSubstring("0.2300 †") && ContainsSubstring("kivi (1 of 2 complete)"));
}

TEST_CASE("A model or a device that is the paper's own does not differ") {
  ResultsMaker maker({"tokens"});
  const auto add = [&](const char* label, int64_t tokens, double time) {
    store::CellResult& cell = maker.add(label, "x", 0, {{"decode_us", time}}, {tokens});
    nlohmann::json config = nlohmann::json::parse(cell.config);
    config["dataset"]["model"] = "M-8B";
    cell.config = config.dump();
  };
  add("16 bits", 1024, 10);
  add("16 bits", 4096, 40);
  add("kivi", 1024, 20);
  add("kivi", 4096, 16);
  maker.results.attributes["backend"] = "cuda";
  maker.results.attributes["gpu"] = "H20";
  const std::string published = R"(published:
  paper: A
  table: Table 1
  title: time
  model: M-8B
  gpu: H20
  certainty: second-hand
  metrics:
    latency: {unit: us, beside: decode_us}
    speed-up: {beside: decode_us, over: 16 bits}
  rows:
    - {method: KIVI, label: kivi, at: {tokens: 4096}, values: {latency: 15, speed-up: 2.4}}
)";
  maker.results.experiment_resolved = published;
  std::string text = table(maker.results, {.format = "csv"});
  CHECK_THAT(text, ContainsSubstring("KIVI,kivi,4096,15,2.4,16,2.5,\r\n"));
  CHECK_THAT(text, ContainsSubstring(",kivi,1024,,,20,0.5,\r\n"));
  maker.results.attributes["gpu"] = "L4";
  CHECK_THAT(table(maker.results, {.format = "csv"}), ContainsSubstring("16,2.5,hardware\r\n"));
  CHECK_THAT(table(maker.results, {}), ContainsSubstring("hardware: published on H20; here L4\n"));
}

TEST_CASE("A file without published numbers says so") {
  CHECK_FALSE(published_of(small_results()));
  try {
    table(small_results(), {.name = "published"});
    FAIL("no error");
  } catch (const Error& error) {
    CHECK_THAT(error.what(), ContainsSubstring("names no published numbers"));
  }
}

}  // namespace
}  // namespace kvlab::report
