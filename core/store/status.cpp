#include <fmt/format.h>

#include <set>

#include "base/error.h"
#include "base/h5_digest.h"
#include "store/sources.h"
#include "store/summary.h"

namespace kvlab::store {
namespace fs = std::filesystem;
namespace {}  // namespace

Status status(const fs::path& path, const std::string& code_version) {
  Status status;
  status.running = running(path);
  const Loaded loaded = load(path, Detail::light);
  const Results& results = loaded.results;
  status.name = results.attribute("name");
  status.created = results.attribute("created");
  status.code_version = results.attribute("code_version");
  status.rows = static_cast<int64_t>(results.rows.size());
  status.missing_rows = missing_rows(results);
  status.missing = missing_rows_text(results);
  status.in_parts = static_cast<int64_t>(loaded.parts.files.size());
  status.ignored_parts = loaded.parts.ignored;
  std::set<std::string> referred;
  for (const SummaryRow& row : results.rows) {
    if (!referred.insert(row.cell).second) continue;
    State state = state_of(results, row);
    // While a run writes the file they are still to come.
    if (state.status == "interrupted" && !status.running.empty()) state = {"pending", ""};
    ++status.cells_by_state[state.status];
    if (state.status != "complete" && state.status != "pending") {
      ++status.reasons[fmt::format("{}: {}", state.status, state.reason)];
    }
  }
  status.cells = static_cast<int64_t>(referred.size());
  for (const auto& [id, cell] : results.cells) {
    if (!referred.contains(id)) {
      status.stale.push_back({id, "no row of the experiment refers to it any more"});
    } else if (cell.status == "complete" && cell.code_version != code_version) {
      status.stale.push_back({id, fmt::format("made by code version {}, this program is {}",
                                              cell.code_version, code_version)});
    }
  }
  return status;
}

Verification verify_results(const fs::path& path) {
  Verification result;
  const Parts parts = find_parts(path);
  result.checked = static_cast<int64_t>(parts.files.size());
  for (const fs::path& ignored : parts.ignored) {
    result.problems.push_back(
        fmt::format("{}: torn, or not a part of this file", ignored.string()));
  }
  const h5::File file = h5::File::open(path);
  check_schema(file);
  std::vector<std::string> groups = {"/experiment", "/summary"};
  for (const std::string& id : file.children("/cells")) groups.push_back(cell_group(id));
  for (const std::string& group : groups) {
    ++result.checked;
    try {
      if (!h5::is_intact(file, group)) {
        result.problems.push_back(fmt::format(
            "{}: {} is not what was written: its checksum differs", path.string(), group));
      }
    } catch (const Error& error) {
      result.problems.emplace_back(error.what());
    }
  }
  return result;
}

}  // namespace kvlab::store
