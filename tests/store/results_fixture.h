#pragma once

#include <fmt/format.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <functional>
#include <limits>
#include <string>

#include "base/error.h"
#include "base/schemas.h"
#include "store/store.h"

/// Made-up results for the tests of store and report.
namespace kvlab::testing {

/// A folder that is removed with all in it.
class Folder {
 public:
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "kvlab_store_XXXXXX").string();
    path_ = mkdtemp(name.data());
  }
  Folder(const Folder&) = delete;
  ~Folder() { std::filesystem::remove_all(path_); }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

/// The message of the Error that `call` throws; "no error" where it throws none.
inline std::string message(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

inline bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

inline std::string cell_id(int number) { return fmt::format("{:032x}", number + 1); }

inline store::CellResult make_cell(int number) {
  store::CellResult cell;
  cell.id = cell_id(number);
  cell.config = fmt::format(R"({{"seed":{},"backend":"reference"}})", number);
  cell.status = "complete";
  cell.started = "2026-01-02T03:04:05Z";
  cell.seconds = 0.5 + number;
  cell.code_version = "0123456789abcdef";
  cell.scalars = {{"k_nmse", 0.01 * (number + 1)},
                  {"wo_rel", 0.1 * (number + 1)},
                  {"tni_ratio", std::numeric_limits<double>::infinity()},
                  {"bits_per_element", 2.25}};
  cell.metrics["k_nmse"] = {{2}, {0.01 * number, 0.01 * number + 0.02}};
  cell.metrics["wo_rel"] = {{}, {0.1 * (number + 1)}};
  cell.samples["encode"] = {{3}, {1000, 1100, 900}};
  cell.tokens["k_err"] = {{2, 3}, {1, 2, 3, 4, 5, 6}};
  cell.rotation["key"] = {{1, 64, 64}, std::vector<double>(64 * 64, 0.125)};
  cell.center["key"] = {{2, 2}, {0.5, 0.25, -1, 2}};
  cell.hist_key[1] = cell.hist_value[1] = 96;
  cell.tokens_total = 128;
  return cell;
}

/// `rows` rows over as many cells: methods kivi and hadamard by turns, swept over `window.recent`.
inline store::Results make_results(int rows) {
  store::Results results;
  results.attributes = {{"schema", kResultsSchema},
                        {"name", "demo"},
                        {"code_version", "0123456789abcdef"},
                        {"host", "n1"}};
  results.experiment_source = "name: demo\n";
  results.experiment_resolved = "name: demo\nseeds: [0]\noutput: a.h5\n";
  results.axes = {"window.recent"};
  for (int i = 0; i < rows; ++i) {
    store::SummaryRow row;
    row.row = i;
    row.cell = cell_id(i);
    row.method = i % 2 == 0 ? "kivi" : "hadamard";
    row.label = row.method;
    row.dataset = "kv";
    row.backend = "reference";
    row.layer = i / 4;
    row.sweep = {i / 2 % 2 == 0 ? 0 : 128};
    results.rows.push_back(row);
  }
  return results;
}

inline store::Results make_full_results(int rows) {
  store::Results results = make_results(rows);
  for (int i = 0; i < rows; ++i) results.cells[cell_id(i)] = make_cell(i);
  return results;
}

}  // namespace kvlab::testing
