#include "report/status.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/names.h"
#include "report/text_width.h"

namespace kvlab::report {
namespace {

using nlohmann::ordered_json;

constexpr size_t kShown = 10;  // lines of a list in text

/// States in the order of contract section 6, then any other.
std::vector<std::pair<std::string, int64_t>> ordered_states(const store::Status& status) {
  std::vector<std::pair<std::string, int64_t>> states;
  for (const char* name : {"complete", "failed", "unsupported", "excluded", "interrupted"}) {
    const auto found = status.cells_by_state.find(name);
    states.emplace_back(name, found == status.cells_by_state.end() ? 0 : found->second);
  }
  for (const auto& [name, count] : status.cells_by_state) {
    const bool known = std::any_of(states.begin(), states.end(),
                                   [&](const auto& state) { return state.first == name; });
    if (!known) states.emplace_back(name, count);
  }
  return states;
}

/// Reasons, the most frequent first.
std::vector<std::pair<std::string, int64_t>> ordered_reasons(const store::Status& status) {
  std::vector<std::pair<std::string, int64_t>> reasons(status.reasons.begin(),
                                                       status.reasons.end());
  std::stable_sort(reasons.begin(), reasons.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  return reasons;
}

std::map<std::string, std::vector<std::string>> stale_by_reason(const store::Status& status) {
  std::map<std::string, std::vector<std::string>> ids;
  for (const store::StaleCell& cell : status.stale) ids[cell.reason].push_back(cell.id);
  return ids;
}

std::string and_more(size_t count) {
  return count > kShown ? fmt::format("  and {} more; --json lists all\n", count - kShown) : "";
}

}  // namespace

std::string status_text(const store::Status& status, const std::string& file) {
  std::string text =
      fmt::format("{}: {}, {}, {}\n", file, status.name.empty() ? "no name" : status.name,
                  counted(status.cells, "cell"), counted(status.rows, "row"));
  if (!status.missing.empty()) text += status.missing + "\n";
  if (!status.created.empty()) {
    text += fmt::format("created {}, code version {}\n", status.created, status.code_version);
  }
  if (!status.running.empty()) text += fmt::format("being written by {}\n", status.running);
  for (const auto& [name, count] : ordered_states(status)) {
    if (count > 0) text += fmt::format("  {:<12}{:>8}\n", name, count);
  }
  if (status.in_parts > 0) {
    text += fmt::format("{} in {}.parts, counted already\n",
                        counted(status.in_parts, "finished cell"), file);
  }
  const auto reasons = ordered_reasons(status);
  if (!reasons.empty()) text += "reasons:\n";
  for (size_t i = 0; i < std::min(reasons.size(), kShown); ++i) {
    text += fmt::format("  {} × {}\n", reasons[i].second, one_line(reasons[i].first));
  }
  text += and_more(reasons.size());
  if (!status.stale.empty()) {
    text += fmt::format("stale: {}\n", counted(std::ssize(status.stale), "cell"));
  }
  for (const auto& [reason, ids] : stale_by_reason(status)) {
    text += fmt::format("  {} × {} (such as {})\n", ids.size(), reason, ids.front().substr(0, 12));
  }
  for (const auto& part : status.ignored_parts) {
    text += fmt::format("ignored, torn or foreign: {}\n", part.string());
  }
  return text;
}

nlohmann::ordered_json status_json(const store::Status& status, const std::string& file) {
  ordered_json states = ordered_json::object();
  for (const auto& [name, count] : ordered_states(status)) states[name] = count;
  ordered_json reasons = ordered_json::array();
  for (const auto& [reason, count] : ordered_reasons(status)) {
    const size_t colon = std::min(reason.find(": "), reason.size());
    reasons.push_back({{"status", reason.substr(0, colon)},
                       {"reason", reason.substr(std::min(colon + 2, reason.size()))},
                       {"cells", count}});
  }
  ordered_json stale = ordered_json::array();
  for (const store::StaleCell& cell : status.stale) {
    stale.push_back({{"cell", cell.id}, {"reason", cell.reason}});
  }
  ordered_json ignored = ordered_json::array();
  for (const auto& part : status.ignored_parts) ignored.push_back(part.string());
  return {{"file", file},
          {"name", status.name},
          {"created", status.created},
          {"code_version", status.code_version},
          {"rows", status.rows},
          {"missing_rows", status.missing_rows},
          {"cells", status.cells},
          {"states", states},
          {"reasons", reasons},
          {"stale", stale},
          {"in_parts", status.in_parts},
          {"ignored_parts", ignored},
          {"running", status.running}};
}

}  // namespace kvlab::report
