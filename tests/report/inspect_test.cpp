#include "report/inspect.h"

#include <unistd.h>

#include <cmath>
#include <fstream>
#include <limits>

#include "base/error.h"
#include "base/h5.h"
#include "catch.h"
#include "report/verify.h"
#include "store/store.h"

namespace kvlab::report {
namespace {

namespace fs = std::filesystem;

/// A folder of its own, removed at the end.
struct Folder {
  Folder() : path(fs::temp_directory_path() / ("kvlab_inspect_" + std::to_string(getpid()))) {
    fs::create_directories(path);
  }
  ~Folder() { fs::remove_all(path); }
  fs::path path;
};

fs::path write_capture(const fs::path& folder, bool with_nonfinite) {
  const fs::path path = folder / "kv.h5";
  h5::File file = h5::File::create(path);
  file.set_attribute("/", "schema", std::string_view("kvlab.capture/1"));
  file.set_attribute("/", "head_dim", int64_t{2});
  for (const char* layer : {"/layer_000", "/layer_003"}) {
    std::vector<float> keys(12, 1.0F);
    std::vector<uint16_t> values(12, 0x3F80);
    if (with_nonfinite && layer[9] == '3') {
      keys[5] = std::numeric_limits<float>::quiet_NaN();
      values[0] = 0x7F80;
      values[1] = 0x7FC0;
    }
    file.write(std::string(layer) + "/k", keys.data(), {1, 1, 6, 2});
    file.write(std::string(layer) + "/v", values.data(), {1, 1, 6, 2});
    file.set_attribute(std::string(layer) + "/v", "dtype", std::string_view("bfloat16"));
  }
  file.close();
  return path;
}

TEST_CASE("Like layers of a capture are shown once") {
  const Folder folder;
  const fs::path path = write_capture(folder.path, false);
  Inspection inspection = inspect(path);
  verify(&inspection);
  CHECK(inspection.problems.empty());
  inspection.file = "kv.h5";
  inspection.bytes = 1000;
  CHECK(inspection_text(inspection) == R"(kv.h5: kvlab.capture/1, 1000 bytes
  layers: 2
attributes:
  head_dim: 2
/layer_000 … /layer_003 (2 groups, each:)
    float32 [1, 1, 6, 2]          k
    bfloat16 [1, 1, 6, 2]         v
verified: 48 values checked, 0 problems
)");
  const nlohmann::ordered_json json = inspection_json(inspection);
  CHECK(json["groups"][0]["groups"].size() == 2);
  CHECK(json["groups"][0]["datasets"][1]["type"] == "bfloat16");
  CHECK(json["problems"].empty());
}

TEST_CASE("Verifying counts NaN and infinite values") {
  const Folder folder;
  Inspection inspection = inspect(write_capture(folder.path, true));
  verify(&inspection);
  CHECK(inspection.problems ==
        std::vector<std::string>{"/layer_003/k: 1 NaN and 0 infinite values",
                                 "/layer_003/v: 1 NaN and 1 infinite values"});
}

TEST_CASE("Verifying finds rotations that are not orthogonal") {
  const Folder folder;
  const fs::path path = folder.path / "rotation.h5";
  {
    h5::File file = h5::File::create(path);
    file.set_attribute("/", "schema", std::string_view("kvlab.rotation/1"));
    const std::vector<double> good = {0.6, 0.8, -0.8, 0.6};
    const std::vector<double> bad = {1, 0, 0, 1.1};
    file.write("/layer_000/key/rotation", good.data(), {1, 2, 2});
    file.write("/layer_000/value/rotation", bad.data(), {1, 2, 2});
    file.close();
  }
  Inspection inspection = inspect(path);
  verify(&inspection);
  CHECK(inspection.problems ==
        std::vector<std::string>{
            "/layer_000/value/rotation: not orthogonal, RᵀR differs from 1 by 0.21"});
}

TEST_CASE("Verifying a results file compares checksums and rows with cells") {
  const Folder folder;
  const fs::path path = folder.path / "results.h5";
  store::CellResult cell;
  cell.id = "c1";
  cell.config = "{}";
  cell.status = "complete";
  cell.metrics["k_mse"] = {{2}, {1, 2}};
  store::Results results;
  results.attributes = {{"schema", "kvlab.results/1"}, {"name", "x"}};
  store::SummaryRow row;
  row.cell = "c1";
  results.rows = {row};
  results.cells["c1"] = cell;
  store::write_results(path, results);
  Inspection inspection = inspect(path);
  CHECK(inspection.counts ==
        std::vector<std::pair<std::string, int64_t>>{{"rows", 1}, {"cells", 1}, {"complete", 1}});
  verify(&inspection);
  CHECK(inspection.problems.empty());
  CHECK(inspection.checked_values >= 3);
}

TEST_CASE("What is not HDF5 is an error, an unknown schema a problem") {
  const Folder folder;
  const fs::path text = folder.path / "text.h5";
  std::ofstream(text) << "not HDF5";
  CHECK_THROWS_AS(inspect(text), Error);
  CHECK_THROWS_AS(inspect(folder.path / "none.h5"), Error);
  const fs::path other = folder.path / "other.h5";
  h5::File::create(other).close();
  Inspection inspection = inspect(other);
  CHECK(inspection.schema.empty());
  verify(&inspection);
  CHECK(inspection.problems.size() == 1);
}

}  // namespace
}  // namespace kvlab::report
