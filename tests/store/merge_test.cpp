#include "base/h5.h"
#include "base/h5_digest.h"
#include "catch.h"
#include "results_fixture.h"
#include "store/experiment_difference.h"

namespace fs = std::filesystem;
using namespace kvlab;           // NOLINT(google-build-using-namespace)
using namespace kvlab::testing;  // NOLINT(google-build-using-namespace)

namespace {

/// Rows and cells of one shard: those with row % shards == shard.
store::Results shard_of(const store::Results& all, int shard, int shards) {
  store::Results results = all;
  results.rows.clear();
  results.cells.clear();
  results.experiment_resolved += fmt::format("# shard {}\n", shard);
  for (const store::SummaryRow& row : all.rows) {
    if (row.row % shards != shard) continue;
    results.rows.push_back(row);
    results.cells[row.cell] = all.cells.at(row.cell);
  }
  return results;
}

std::string summary_digest(const fs::path& path) {
  return h5::digest(h5::File::open(path), "/summary");
}

}  // namespace

TEST_CASE("merge: shards give the summary of one run", "[store]") {
  const Folder folder;
  store::Results all = make_full_results(10);
  all.rows[3].warnings = {"of the row"};
  all.cells[cell_id(5)].status = "failed";
  all.cells[cell_id(5)].reason = "out of memory";
  store::write_results(folder / "one.h5", all);
  std::vector<fs::path> inputs;
  for (int i = 2; i >= 0; --i) {
    inputs.push_back(folder / fmt::format("shard{}.h5", i));
    store::write_results(inputs.back(), shard_of(all, i, 3));
  }
  const store::MergeReport report =
      store::merge(folder / "merged.h5", inputs, {{"host", "merging"}});
  CHECK(report.rows == 10);
  CHECK(report.cells == 10);
  CHECK(report.warnings.empty());
  CHECK(summary_digest(folder / "merged.h5") == summary_digest(folder / "one.h5"));
  const store::Results read = store::read_results(folder / "merged.h5", store::Detail::full);
  CHECK(read.attributes.at("host") == "merging");
  CHECK(read.cells.at(cell_id(9)).rotation.at("key").data.size() == 64 * 64);
  CHECK(store::verify_results(folder / "merged.h5").problems.empty());
  CHECK_FALSE(fs::exists(folder / "merged.h5.lock"));
}

TEST_CASE("merge: complete cells win, parts count, and disagreement is a warning", "[store]") {
  const Folder folder;
  store::Results a = make_full_results(3);
  a.cells[cell_id(0)].status = "interrupted";
  a.cells.erase(cell_id(2));
  store::Results b = make_full_results(3);
  b.cells[cell_id(1)].scalars["k_nmse"] = 0.5;
  b.cells[cell_id(1)].scalars["encode_us"] = 7;
  b.attributes["host"] = "n2";
  store::write_results(folder / "a.h5", a);
  store::write_part(folder / "a.h5", make_cell(2));
  store::write_results(folder / "b.h5", b);
  const store::MergeReport report =
      store::merge(folder / "a.h5", {folder / "a.h5", folder / "b.h5"});
  REQUIRE(report.warnings.size() == 1);
  CHECK(has(report.warnings[0], cell_id(1)));
  CHECK(has(report.warnings[0], "k_nmse is 0.02 in "));
  CHECK(has(report.warnings[0], "and 0.5 in "));
  const store::Results read = store::read_results(folder / "a.h5");
  for (const store::SummaryRow& row : read.rows) {
    CHECK(store::state_of(read, row).status == "complete");
  }
  CHECK(read.cells.at(cell_id(1)).scalars.at("k_nmse") == 0.02);
  CHECK(read.rows[1].warnings.size() == 1);
  CHECK(read.attributes.at("host") == "n1; n2");
  CHECK_FALSE(fs::exists(store::parts_folder(folder / "a.h5")));
}

TEST_CASE("merge: other experiments, code and data are refused by name", "[store]") {
  const Folder folder;
  store::write_results(folder / "a.h5", make_full_results(2));
  const auto refused = [&](const store::Results& results) {
    store::write_results(folder / "b.h5", results);
    const std::string text =
        message([&] { store::merge(folder / "out.h5", {folder / "a.h5", folder / "b.h5"}); });
    CHECK_FALSE(fs::exists(folder / "out.h5"));
    return text;
  };
  store::Results other = make_full_results(2);
  other.experiment_resolved = "name: demo\nseeds: [0, 1]\noutput: elsewhere.h5\n";
  CHECK(has(refused(other), "b.h5: holds another experiment: seeds is [0] in "));
  other = make_full_results(2);
  other.attributes["code_version"] = "fedcba9876543210";
  CHECK(has(refused(other), "code version fedcba9876543210"));
  other = make_full_results(2);
  other.rows[1].cell = cell_id(9);
  other.cells[cell_id(9)] = make_cell(9);
  CHECK(has(refused(other), "row 1 is cell " + cell_id(9)));
  store::write_part(folder / "out.h5", make_cell(0));
  CHECK(has(message([&] { store::merge(folder / "out.h5", {folder / "a.h5"}); }),
            "holds 1 finished cells of a run"));
}

TEST_CASE("merge: the first difference of two experiments is named", "[store]") {
  const auto difference = [](const char* a, const char* b) {
    return store::experiment_difference(a, b, "A", "B");
  };
  CHECK(difference("{a: 1, b: {c: [1, 2]}}", "{b: {c: [1, 2]}, a: 1, output: x}").empty());
  CHECK(difference("{a: {b: 1}}", "{a: {b: 2}}") == "a.b is 1 in A and 2 in B");
  CHECK(difference("{a: 1}", "{}") == "a is 1 in A and absent in B");
  CHECK(difference("{m: [x, {use: y}]}", "{m: [x, {use: z}]}") == "m[1].use is y in A and z in B");
  CHECK(difference("{m: [x]}", "{m: [x, y]}") == "m is [x] in A and [x, y] in B");
}
