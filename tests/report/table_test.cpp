#include "report/table.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "catch.h"
#include "report/against.h"
#include "report/grid.h"
#include "report/results_maker.h"

namespace kvlab::report {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

std::string error_of(const store::Results& results, const TableOptions& options) {
  try {
    table(results, options);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST_CASE("A table is sorted by wo_rel, averages, and says what a reader must know") {
  const std::string expected =
      R"(label   bits_per_element  wo_rel  cells
------  ----------------  ------  -----
U·H·P              2.500  0.1150      4
kivi               3.250  0.2150      4
quarot                 -       -      0

mean over 2 datasets, 2 layers
backend: reference
data: austen, jargon (head_dim 64, 3 KV heads, 9 query heads, 2048 tokens, bf16, 2 layers)
differs between methods: grid: float_zero (kivi); rounded_zero (U·H·P)
differs between methods: clip: none (kivi); 0.96 (U·H·P)
differs between methods: window: sink 0 recent 128 kivi (kivi); sink 64 recent 256 block (U·H·P)
1 cell unsupported: recent 100 is no multiple of 32 (quarot)
)";
  CHECK(table(small_results(), {}) == expected);
  CHECK(table_warnings(small_results(), "aa11") ==
        std::vector<std::string>{"1 cell unsupported: recent 100 is no multiple of 32 (quarot)"});
}

TEST_CASE("Markdown has the same table and notes") {
  const std::string text = table(small_results(), {.format = "markdown"});
  CHECK_THAT(text, ContainsSubstring("| label | bits_per_element | wo_rel | cells |\n"
                                     "| --- | ---: | ---: | ---: |\n"
                                     "| U·H·P | 2.500 | 0.1150 | 4 |\n"));
  CHECK_THAT(text, ContainsSubstring("\n- backend: reference\n"));
}

TEST_CASE("Markdown shows any label as it stands") {
  ResultsMaker maker;
  for (const char* label : {"a_b *c* `d` |e| <f>", "_g_ [h](i) $j$ ~~k~~ &amp; \\l", "_µ_2"}) {
    maker.add(label, "x", 0, {{"wo_rel", 0.25}});
  }
  const std::string text = table(maker.results, {.format = "markdown"});
  CHECK_THAT(text, ContainsSubstring(R"(| a_b \*c\* \`d\` \|e\| \<f> |)"));
  CHECK_THAT(text, ContainsSubstring(R"(| \_g\_ \[h](i) \$j\$ \~\~k\~\~ \&amp; \\l |)"));
  CHECK_THAT(text, ContainsSubstring(R"(| \_µ_2 |)"));
}

TEST_CASE("LaTeX has booktabs' rules, escapes, and comments for notes") {
  ResultsMaker maker;
  maker.add("a_b & 50%", "x", 0, {{"wo_rel", 0.25}});
  maker.add("U·H", "x", 0, {{"wo_rel", 0.5}});
  maker.add("c", "x", 0, {{"wo_rel", kNaN}});
  CHECK_THAT(table(maker.results, {.format = "latex", .emphasis = true}),
             ContainsSubstring(R"(\begin{tabular}{lrr}
\toprule
label & wo\_rel & cells \\
\midrule
a\_b \& 50\% & \textbf{0.2500} & 1 \\
U$\cdot$H & \underline{0.5000} & 1 \\
c & -- & 0 \\
\bottomrule
\end{tabular}
)") && ContainsSubstring("% backend: reference\n"));
}

TEST_CASE("A LaTeX table takes any label: arguments of a line end, and letters that OT1 lacks") {
  ResultsMaker maker;
  maker.add("[2pt] a", "x", 0, {{"wo_rel", 0.1}});
  maker.add("*", "x", 0, {{"wo_rel", 0.2}});
  maker.add("ρ ≤ 0.5|é–U+4E2D: 中", "x", 0, {{"wo_rel", 0.3}});
  CHECK_THAT(table(maker.results, {.format = "latex"}),
             ContainsSubstring("\\midrule\n{[}2pt] a & ") && ContainsSubstring("\\\\\n{*} & ") &&
                 ContainsSubstring("$\\rho$ $\\leq$ 0.5\\textbar{}é--U+4E2D: \\texttt{U+4E2D} & "));
}

/// Standard deviation 0.0461, so an interval of 1.96 · 0.0461 / √16 = 0.0226 about each mean.
/// Lines a, b and c on so many passages: b is above a by a hair that changes sign, c far above.
store::Results passages(int64_t count, bool is_synthetic = false) {
  ResultsMaker maker;
  for (int64_t i = 0; i < count; ++i) {
    const double passage = 0.01 * static_cast<double>(i);
    const double hair = i % 2 == 0 ? 0.003 : -0.002;
    for (const auto& [label, value] : {std::pair{"a", 0.1}, {"b", 0.1 + hair}, {"c", 0.2}}) {
      store::CellResult& cell =
          maker.add(label, is_synthetic ? "gaussian" : "text" + std::to_string(i), 0,
                    {{"wo_rel", value + passage}});
      if (!is_synthetic) continue;
      maker.results.rows.back().seed = i;
      maker.results.rows.back().seed_used = true;
      nlohmann::json config = nlohmann::json::parse(cell.config);
      config["dataset"]["source"] = "synthetic";
      cell.config = config.dump();
    }
  }
  return maker.results;
}

TEST_CASE("A mean over enough passages has an interval, and what they cannot tell apart ties") {
  for (const bool is_synthetic : {false, true}) {
    CAPTURE(is_synthetic);
    const std::string text = table(passages(16, is_synthetic), {.emphasis = true});
    CHECK_THAT(text, ContainsSubstring("\033[1m0.1750 ±0.023\033[0m") &&
                         ContainsSubstring("\033[1m0.1755 ±0.023\033[0m") &&
                         ContainsSubstring("\033[4m0.2750 ±0.023\033[0m"));
    CHECK_THAT(text, ContainsSubstring("cannot be told from them by the passages"));
    const std::string csv = table(passages(16, is_synthetic), {.format = "csv"});
    CHECK_THAT(csv, ContainsSubstring("label,wo_rel,wo_rel low,wo_rel high,cells\r\n"));
  }
  const std::string few = table(passages(15), {.emphasis = true});
  CHECK(few.find("±") == std::string::npos);
  CHECK_THAT(few, ContainsSubstring("\033[1m0.1700\033[0m") && ContainsSubstring("\033[4m0.1707"));
}

/// kivi on one file, or one draw, under so many names.
store::Results repeated(int count, bool is_drawn) {
  ResultsMaker maker;
  for (int i = 0; i < count; ++i) {
    store::CellResult& cell =
        maker.add("kivi", "name" + std::to_string(i), 0, {{"wo_rel", 0.1 + 0.01 * i}});
    nlohmann::json config = nlohmann::json::parse(cell.config);
    if (is_drawn) {
      maker.results.rows.back().seed_used = true;
      config["dataset"].update({{"source", "synthetic"},
                                {"params", {{"pattern", "gaussian"}, {"tokens", 64 * (i + 1)}}}});
    } else {
      config["dataset"]["sha256"] = "abc";
    }
    cell.config = config.dump();
  }
  return maker.results;
}

TEST_CASE("One passage under sixteen names is one passage") {
  for (const bool is_drawn : {false, true}) {
    CAPTURE(is_drawn);
    const std::string text = table(repeated(16, is_drawn), {});
    CHECK(text.find("±") == std::string::npos);
    CHECK_THAT(text, ContainsSubstring("0.1750"));
  }
  // A cell that several names share counts once.
  store::Results shared = repeated(2, false);
  shared.cells.erase(shared.rows[1].cell);
  shared.rows[1].cell = shared.rows[0].cell;
  CHECK_THAT(table(shared, {}), ContainsSubstring("0.1000"));
  const Passages passages(shared);
  const Value value = mean_of(shared, passages, {&shared.rows[0], &shared.rows[1]}, "wo_rel");
  CHECK(value.planned == 1);
  CHECK(value.numbers == 1);
}

/// Lines a, b and c on four passages of blocks: b is above a by a hair that changes sign, c by
/// half.
store::Results four_passages() {
  ResultsMaker maker;
  for (int passage = 0; passage < 4; ++passage) {
    for (const auto& [label, factor] :
         {std::pair{"a", 1.0}, {"b", passage % 2 ? 1.04 : 0.97}, {"c", 1.5}}) {
      store::CellResult& cell = maker.add(label, "text" + std::to_string(passage), 0, {});
      store::Array& sums = cell.blocks["attn_kl"];
      sums.shape = {1, 8, 2};
      double sum = 0;
      for (int block = 0; block < 8; ++block) {
        sums.data.insert(sums.data.end(), {factor * (4 + block % 3 + passage), 128});
        sum += sums.data[static_cast<size_t>(block) * 2];
      }
      cell.scalars["attn_kl"] = sum / (8 * 128);
      maker.results.rows.back().text = passage < 2 ? "Austen" : "jargon";
    }
  }
  return maker.results;
}

TEST_CASE("Four passages have intervals where blocks are known, and say that they are few") {
  const std::string text = table(four_passages(), {.value = "attn_kl"});
  CHECK_THAT(text, ContainsSubstring("±") && ContainsSubstring("4 passages are too few"));
  // Two of each text are no passages to resample.
  CHECK(table(four_passages(), {.rows = "text", .value = "attn_kl"}).find("±") ==
        std::string::npos);
}

TEST_CASE("table --against: each value is held against one row or column, paired") {
  TableOptions options{.rows = "label", .against = "a", .value = "attn_kl"};
  const std::string text = table(four_passages(), options);
  CHECK_THAT(
      text, ContainsSubstring("(not distinguishable)") && ContainsSubstring("(+50.0% ±") &&
                ContainsSubstring("in brackets: off a, paired by passage, as a share of its mean"));
  options = {
      .rows = "dataset", .cols = "label", .against = "a", .value = "attn_kl", .format = "csv"};
  CHECK_THAT(table(four_passages(), options),
             ContainsSubstring("label=c off,label=c off low,label=c off high"));
  options.against = "d";
  CHECK(error_of(four_passages(), options) ==
        "--against: the table has no row or column 'd' (did you mean 'a'?); choose from a, b, c, "
        "text0, text1, text2, text3");
  // A row, where no column is called so.
  options = {.rows = "label", .cols = "dataset", .against = "a", .value = "attn_kl"};
  CHECK_THAT(table(four_passages(), options), ContainsSubstring("in brackets: off a, without"));
  // Texts share no passage.
  options = {.rows = "label", .cols = "text", .against = "Austen", .value = "attn_kl"};
  CHECK_THAT(table(four_passages(), options),
             ContainsSubstring(
                 "in brackets: off Austen, without intervals: too few passages are of both"));
}

TEST_CASE("A difference that rounds to zero has no sign") {
  CHECK(off_text({.share = -0.0004, .low = kNaN, .high = kNaN}) == "0.0%");
  CHECK(off_text({.share = 0.0004, .low = 0.0001, .high = 0.0007}) == "0.0% ±0.0%");
  CHECK(off_text({.share = -0.0006, .low = kNaN, .high = kNaN}) == "-0.1%");
}

TEST_CASE("What only benchmarks measure is in the default table, and else what there is") {
  ResultsMaker maker;
  maker.add("F1", "shape", -1, {{"step_us", 100}, {"tokens_per_second", 10}, {"used_bytes", 5}});
  CHECK_THAT(table(maker.results, {}), ContainsSubstring("step_us  tokens_per_second  cells"));
  ResultsMaker other;
  other.add("F1", "shape", 0, {{"tni_cv", 1}, {"used_bytes", 5}});
  CHECK_THAT(table(other.results, {}), ContainsSubstring("tni_cv  used_bytes  cells"));
}

TEST_CASE("Blocks are read only where a mean can have an interval") {
  CHECK_FALSE(may_have_intervals(small_results()));
  CHECK(may_have_intervals(four_passages()));
  ResultsMaker maker;
  maker.add("bf16", "text", -1, {{"nll", 2}});
  CHECK(may_have_intervals(maker.results));
}

TEST_CASE("CSV is clean: full precision, empty fields, quoted text, no notes") {
  ResultsMaker maker;
  maker.add("a, \"b\"", "x", 0, {{"wo_rel", 0.1 + 0.2}});
  maker.add("c", "x", 0, {{"wo_rel", kNaN}});
  CHECK(table(maker.results, {.format = "csv"}) ==
        "label,wo_rel,cells\r\n\"a, \"\"b\"\"\",0.30000000000000004,1\r\nc,,0\r\n");
}

TEST_CASE("The same results give the same bytes, and rows may lie in any order") {
  store::Results results = small_results();
  const std::string text = table(results, {});
  std::reverse(results.rows.begin(), results.rows.end());
  CHECK(table(results, {.format = "csv"}) == table(small_results(), {.format = "csv"}));
  CHECK(table(small_results(), {}) == text);
}

TEST_CASE("D93: whatever is not complete is a dash") {
  store::Results results = small_results();
  for (const char* status : {"failed", "unsupported", "excluded", "interrupted"}) {
    for (auto& [id, cell] : results.cells) {
      cell.status = status;
      cell.scalars["wo_rel"] = 1e-20;
    }
    const std::string text = table(results, {});
    CHECK_THAT(text, ContainsSubstring("kivi                   -"));
    CHECK_THAT(text, ContainsSubstring(std::string("8 cells ") + status + ": no reason stored"));
    CHECK(text.find("e-20") == std::string::npos);
  }
}

TEST_CASE("A NaN is left out of a mean, does not count, and the table says so") {
  store::Results results = small_results();
  results.cells["cell0"].scalars["wo_rel"] = kNaN;
  const std::string text = table(results, {.emphasis = true});
  CHECK(text.find("nan") == std::string::npos);
  CHECK_THAT(text, ContainsSubstring("0.2200 †      4\n"));
  CHECK_THAT(text, ContainsSubstring("† over fewer cells than other rows, not comparable: kivi, "
                                     "wo_rel (4 of 4 complete, 3 with a number)\n"));
  CHECK_THAT(table(results, {.rows = "label", .cols = "layer"}),
             ContainsSubstring("kivi    0.2200 †  0.2200      3\n"));
  // A program has neither marks nor notes.
  CHECK_THAT(table(results, {.value = "wo_rel", .format = "csv"}),
             ContainsSubstring("label,wo_rel,wo_rel cells,cells\r\n") &&
                 ContainsSubstring("kivi,0.22,3,3\r\n"));
  // Alone in a file, it is no rival for the best: its mean is over the easier half.
  results.cells["cell1"].scalars["wo_rel"] = results.cells["cell2"].scalars["wo_rel"] = 1e-9;
  CHECK_THAT(table(results, {.value = "wo_rel", .emphasis = true}),
             !ContainsSubstring("\033[1m0.0767"));
}

TEST_CASE("A metric that every row lacks in the same cells marks none") {
  store::Results results = small_results();
  for (const char* cell : {"cell0", "cell4"}) results.cells[cell].scalars["wo_rel"] = kNaN;
  const std::string text = table(results, {});
  CHECK(text.find("†") == std::string::npos);
  CHECK_THAT(text, ContainsSubstring("wo_rel: mean over 6 of 8 cells; the others have no value"));
}

TEST_CASE("A row over fewer cells than the others is marked") {
  store::Results results = small_results();
  results.cells["cell1"].status = "failed";
  results.cells["cell1"].reason = "out of memory";
  const std::string text = table(results, {});
  CHECK_THAT(text, ContainsSubstring("kivi †"));
  CHECK_THAT(text,
             ContainsSubstring(
                 "† over fewer cells than other rows, not comparable: kivi (3 of 4 complete)"));
  CHECK_THAT(text, ContainsSubstring("1 cell failed: out of memory (kivi)"));

  store::Results shard = small_results();  // rows that another shard has
  shard.rows.erase(shard.rows.begin(), shard.rows.begin() + 2);
  CHECK_THAT(table(shard, {}), ContainsSubstring("kivi (2 of 2 complete)"));
}

TEST_CASE("D100: cells of another code version are never averaged in") {
  store::Results results = small_results();
  results.cells["cell0"].code_version = "bb22";
  results.cells["cell0"].scalars["wo_rel"] = 1e6;
  const std::string text = table(results, {});
  CHECK_THAT(text, ContainsSubstring("3.250  0.2200      3\n"));
  CHECK_THAT(table(results, {.code_version = "cc33"}),
             ContainsSubstring("stale: made by code version aa11, this program is cc33\n"));
  CHECK_THAT(text, ContainsSubstring("1 cell stale: computed by another version of kvlab (kivi)"));
}

TEST_CASE("Warnings are numbered once and marked on their rows") {
  store::Results results = small_results();
  results.cells["cell0"].warnings = {"calibration overlaps", "group became 64"};
  results.cells["cell1"].warnings = {"calibration overlaps"};
  results.rows[4].warnings = {"group became 64"};
  const std::string text = table(results, {});
  CHECK_THAT(text, ContainsSubstring("U·H·P [1]  ") && ContainsSubstring("kivi [1,2]  "));
  CHECK_THAT(text, ContainsSubstring("\n[1] group became 64\n[2] calibration overlaps\n"));
}

TEST_CASE("A line that averages over cells with many twins says so once") {
  store::Results results = small_results();
  const std::string label = results.rows[0].label;
  int twins = 0;
  for (store::SummaryRow& row : results.rows) {
    if (row.label != label) continue;
    row.warnings = {fmt::format("same configuration as twin {}, computed once", ++twins)};
  }
  REQUIRE(twins > 2);
  const std::string text = table(results, {});
  CHECK_THAT(text,
             ContainsSubstring("[1] cells of the same configuration as others, computed once") &&
                 !ContainsSubstring("twin 1"));
}

TEST_CASE("An axis that goes along with that of the rows is not averaged over") {
  ResultsMaker maker({"key.codec.bits", "value.codec.bits"});
  for (const int64_t bits : {2, 3, 4}) {
    for (const int64_t layer : {0, 1}) {
      maker.add("kivi", "x", layer, {{"wo_rel", 1.0 / static_cast<double>(bits)}}, {bits, bits});
    }
  }
  TableOptions options{.rows = "label,key.codec.bits", .value = "wo_rel"};
  CHECK_THAT(table(maker.results, options), ContainsSubstring("\nmean over 2 layers\n"));
  options.rows = "label";
  CHECK_THAT(
      table(maker.results, options),
      ContainsSubstring("2 layers, 3 values of key.codec.bits, 3 values of value.codec.bits"));
}

TEST_CASE("A sweep has a row for each label and point, a pivot a column") {
  ResultsMaker maker({"group", "window.recent"});
  for (const int64_t group : {64, 32}) {
    for (const int64_t recent : {128, 0}) {
      for (const int64_t layer : {0, 1}) {
        const double value = static_cast<double>(group + recent + layer) / 1000;
        maker.add("kivi", "x", layer, {{"wo_rel", value}}, {group, recent});
      }
    }
  }
  maker.results.cells["cell0"].status = "unsupported";
  maker.results.cells["cell1"].status = "unsupported";
  CHECK(table(maker.results, {.format = "csv"}) ==
        "label,group,window.recent,wo_rel,cells\r\nkivi,32,0,0.0325,2\r\nkivi,64,0,0.0645,2\r\n"
        "kivi,32,128,0.1605,2\r\nkivi,64,128,,0\r\n");

  TableOptions options{.rows = "window.recent", .cols = "group", .value = "wo_rel"};
  const std::string text = table(maker.results, options);
  CHECK_THAT(text, ContainsSubstring("wo_rel by window.recent (rows) and group (columns)\n\n"
                                     "window.recent       32       64  cells\n"));
  CHECK_THAT(text, ContainsSubstring("0              0.03250  0.06450      4\n"
                                     "128             0.1605        -      2\n"));
  CHECK_THAT(text, ContainsSubstring("mean over 2 layers\n"));
  options.format = "csv";
  CHECK(table(maker.results, options) ==
        "window.recent,group=32,group=64,cells\r\n0,0.0325,0.0645,4\r\n128,0.1605,,2\r\n");
  options = {.name = "window", .format = "csv"};
  CHECK_THAT(table(maker.results, options),
             ContainsSubstring("label,group,window.recent=0,window.recent=128,cells\r\n"));
}

TEST_CASE("D07, D101: settings that differ are named, the most common one without names") {
  ResultsMaker maker;
  for (const char* label : {"a", "b", "c", "d"}) maker.add(label, "x", 0, {{"wo_rel", 1}});
  maker.set_method(R"({"kind": "uniform", "bits": 4, "group": 32, "grid": "float_zero",
                       "clip": "none", "rounding": "half_even", "params": "fp16"})",
                   R"({"sink": 0, "recent": 128, "flush": "kivi"})");
  maker.add("e, 4 bits", "x", 0, {{"wo_rel", 1}});
  maker.set_method(R"({"kind": "passthrough"})", "{}");
  maker.add("bf16", "x", 0, {{"wo_rel", 0}});
  const std::string text = table(maker.results, {});
  CHECK_THAT(
      text, ContainsSubstring("differs between methods: bits: 4 ('e, 4 bits'); 2 (the other 4)\n"));
  CHECK(text.find("differs between methods: g") == std::string::npos);
}

TEST_CASE("Best is bold and second underlined, full precision does not compete") {
  store::Results results = small_results();
  ResultsMaker maker;
  maker.results = results;
  maker.set_method(R"({"kind": "passthrough"})", "{}");
  for (const char* dataset : {"austen", "jargon"}) {
    for (const int64_t layer : {2, 10}) {
      maker.add("bf16", dataset, layer, {{"wo_rel", 0}, {"bits_per_element", 16}});
    }
  }
  const std::string text = table(maker.results, {.emphasis = true});
  CHECK_THAT(text, ContainsSubstring("bf16               16.00       0      4\n"));
  CHECK_THAT(
      text, ContainsSubstring("\033[1m0.1150\033[0m") && ContainsSubstring("\033[4m0.2150\033[0m"));
  CHECK(table(maker.results, {}).find('\033') == std::string::npos);
  CHECK_THAT(table(maker.results, {.format = "markdown", .emphasis = true}),
             ContainsSubstring("**0.1150**") && ContainsSubstring("<u>0.2150</u>"));
}

TEST_CASE("Wrong names are errors with the nearest valid one") {
  const store::Results results = small_results();
  CHECK(error_of(results, {.rows = "lable"}) ==
        "--rows: this file has no column 'lable' to sort its cells by (did you mean 'label'?); "
        "choose from method, label, dataset, text, layer, seed, backend");
  CHECK_THAT(error_of(results, {.cols = "layr"}), ContainsSubstring("did you mean 'layer'?"));
  CHECK_THAT(error_of(results, {.value = "worel"}), ContainsSubstring("did you mean 'wo_rel'?"));
  CHECK(error_of(results, {.value = "k_mse"}) ==
        "--value: 'k_mse' was not measured in this file; choose from wo_rel, bits_per_element");
  CHECK_THAT(error_of(results, {.name = "layer"}), ContainsSubstring("did you mean 'layers'?"));
  CHECK_THAT(error_of(results, {.name = "window"}),
             ContainsSubstring("--name: this file has no column 'window.recent'"));
  CHECK_THAT(error_of(results, {.format = "cvs"}), ContainsSubstring("did you mean 'csv'?"));
  CHECK_THAT(error_of(results, {.rows = "layer", .cols = "layer"}), ContainsSubstring("both"));
  CHECK_THAT(error_of(results, {.cols = "layer", .value = "wo_rel,bits_per_element"}),
             ContainsSubstring("shows one metric"));
  CHECK(error_of(results, {.rows = "label,layer,label"}) == "--rows: 'label' stands there twice");
  CHECK(error_of(results, {.value = "wo_rel,wo_rel"}) == "--value: 'wo_rel' stands there twice");
  CHECK_THAT(error_of({}, {}), ContainsSubstring("has no rows"));
}

}  // namespace
}  // namespace kvlab::report
