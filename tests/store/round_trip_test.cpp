#include <fstream>

#include "base/h5.h"
#include "catch.h"
#include "results_fixture.h"

namespace fs = std::filesystem;
using namespace kvlab;           // NOLINT(google-build-using-namespace)
using namespace kvlab::testing;  // NOLINT(google-build-using-namespace)

namespace {

bool operator==(const store::Array& a, const store::Array& b) {
  return a.shape == b.shape && a.data == b.data;
}

void check_equal(const std::map<std::string, store::Array>& a,
                 const std::map<std::string, store::Array>& b) {
  REQUIRE(a.size() == b.size());
  for (const auto& [name, array] : a) CHECK((array == b.at(name)));
}

}  // namespace

TEST_CASE("store: results come back as written", "[store]") {
  const Folder folder;
  store::Results written = make_full_results(6);
  written.rows[1].warnings = {"of the row"};
  written.cells[cell_id(1)].warnings = {"of the cell", "σ is large"};
  written.cells[cell_id(2)].status = "failed";
  written.cells[cell_id(2)].reason = "out of memory";
  written.cells.erase(cell_id(3));
  written.axes.push_back("key.codec.clip");
  for (auto& row : written.rows)
    row.sweep.push_back(row.row == 0 ? nlohmann::json("none") : nlohmann::json(0.96));
  store::write_results(folder / "a.h5", written);
  const store::Results read = store::read_results(folder / "a.h5", store::Detail::full);

  CHECK(read.attributes == written.attributes);
  CHECK(read.experiment_source == written.experiment_source);
  CHECK(read.experiment_resolved == written.experiment_resolved);
  CHECK(read.axes == written.axes);
  REQUIRE(read.rows.size() == 6);
  for (size_t i = 0; i < 6; ++i) {
    CHECK(read.rows[i].row == written.rows[i].row);
    CHECK(read.rows[i].cell == written.rows[i].cell);
    CHECK(read.rows[i].sweep == written.rows[i].sweep);
    CHECK(read.rows[i].layer == written.rows[i].layer);
  }
  CHECK(read.rows[1].warnings == std::vector<std::string>{"of the row"});
  CHECK(store::warnings_of(read, read.rows[1]) ==
        std::vector<std::string>{"of the row", "of the cell", "σ is large"});
  CHECK(store::state_of(read, read.rows[2]).reason == "out of memory");
  CHECK(store::state_of(read, read.rows[3]).status == "interrupted");
  CHECK(std::isnan(store::scalar_of(read, read.rows[2], "k_nmse")));

  const store::CellResult& a = read.cells.at(cell_id(1));
  const store::CellResult& b = written.cells.at(cell_id(1));
  CHECK(a.config == b.config);
  CHECK(a.scalars == b.scalars);
  CHECK(a.seconds == b.seconds);
  CHECK(a.tokens_total == 128);
  check_equal(a.metrics, b.metrics);
  check_equal(a.samples, b.samples);
  check_equal(a.tokens, b.tokens);
  check_equal(a.rotation, b.rotation);
  check_equal(a.center, b.center);
  CHECK(store::read_results(folder / "a.h5").cells.at(cell_id(1)).metrics.empty());
}

TEST_CASE("store: the file has the layout of the contract", "[store]") {
  const Folder folder;
  store::Results written = make_full_results(4);
  written.cells[cell_id(2)].status = "failed";
  store::write_results(folder / "a.h5", written);
  const h5::File file = h5::File::open(folder / "a.h5");
  CHECK(file.attribute<std::string>("/", "schema") == "kvlab.results/1");
  for (const std::string& name : store::fixed_columns()) {
    CHECK(file.info("/summary/" + name).shape == std::vector<int64_t>{4});
  }
  CHECK(file.read<int64_t>("/summary/window.recent") == std::vector<int64_t>{0, 0, 128, 128});
  CHECK(file.info("/summary/window.recent").element.name() == "int64");
  CHECK(file.attribute<std::string>("/summary/bits_per_element", "unit") == "bits");
  const std::vector<double> errors = file.read<double>("/summary/k_nmse");
  CHECK(errors[0] == 0.01);
  CHECK(std::isnan(errors[2]));
  CHECK(std::isnan(file.read<double>("/summary/attn_kl")[0]));
  CHECK(std::isinf(file.read<double>("/summary/tni_ratio")[0]));
  CHECK(file.read<int64_t>("/summary/hist_tokens_key")[0] == 96);
  CHECK(file.read<int64_t>("/summary/window_tokens_value")[0] == 32);
  const std::string cell = "/cells/" + cell_id(0);
  CHECK(file.attribute<std::vector<int64_t>>(cell, "hist_key") == std::vector<int64_t>{0, 96});
  CHECK(file.info(cell + "/center/key").element.name() == "float32");
  CHECK(file.info(cell + "/rotation/key").element.name() == "float64");
  CHECK(file.info(cell + "/metrics/wo_rel").shape.empty());
}

TEST_CASE("store: a sweep axis may not take the name of a column", "[store]") {
  const Folder folder;
  store::Results results = make_full_results(1);
  for (const char* name : {"status", "k_mse", "a/b"}) {
    results.axes = {name};
    CHECK(has(message([&] { store::write_results(folder / "a.h5", results); }), name));
    CHECK_FALSE(fs::exists(folder / "a.h5"));
  }
}

TEST_CASE("store: errors name the file and what to do", "[store]") {
  const Folder folder;
  const fs::path path = folder / "a.h5";
  CHECK(has(message([&] { store::read_results(path); }), "a.h5: no such file"));
  store::write_part(path, make_cell(0));
  CHECK(has(message([&] { store::read_results(path); }), "1 finished cells are in"));
  store::write_results(path, make_full_results(3));
  fs::copy_file(path, folder / "short.h5");
  fs::resize_file(folder / "short.h5", fs::file_size(path) / 2);
  CHECK(has(message([&] { store::read_results(folder / "short.h5"); }), "short.h5: truncated"));
  const auto with_schema = [&](const std::string& name, const char* schema) {
    h5::File file = h5::File::create(folder / name);
    if (schema) file.set_attribute("/", "schema", schema);
    file.close();
    return message([&] { store::read_results(folder / name); });
  };
  const std::string newer = with_schema("newer.h5", "kvlab.results/2");
  CHECK(has(newer, "kvlab.results/2"));
  CHECK(has(newer, "this program reads kvlab.results/1"));
  CHECK(has(newer, "run the experiment again"));
  CHECK(has(with_schema("capture.h5", "kvlab.capture/1"),
            "expected kvlab.results/1, found kvlab.capture/1"));
  CHECK(has(with_schema("bare.h5", nullptr), "attribute 'schema'"));
  // What is no results file is never replaced by one.
  CHECK(has(message([&] { store::write_results(folder / "capture.h5", make_full_results(1)); }),
            "capture.h5: not a results file"));
  CHECK(has(message([&] { store::update_results(folder / "newer.h5", make_full_results(1)); }),
            "kvlab.results/2"));
}

TEST_CASE("store: flipped bytes in a cell are found by verify", "[store]") {
  const Folder folder;
  const fs::path path = folder / "a.h5";
  store::write_results(path, make_full_results(3));
  CHECK(store::verify_results(path).problems.empty());
  CHECK(store::verify_results(path).checked == 5);
  std::string bytes(fs::file_size(path), '\0');
  std::ifstream(path, std::ios::binary).read(bytes.data(), static_cast<long>(bytes.size()));
  const size_t at = bytes.find("\"seed\":1,");
  REQUIRE(at != std::string::npos);
  bytes[at + 7] = '7';
  std::ofstream(path, std::ios::binary) << bytes;
  const store::Verification result = store::verify_results(path);
  REQUIRE(result.problems.size() == 1);
  CHECK(has(result.problems[0], cell_id(1) + " is not what was written"));
}
