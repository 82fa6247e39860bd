#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/names.h"
#include "metrics_catalog/catalog.h"
#include "store/experiment_difference.h"
#include "store/sources.h"
#include "store/summary.h"

namespace kvlab::store {
namespace fs = std::filesystem;
namespace {

int rank_of(const std::string& status) {
  if (status == "complete") return 3;
  if (status == "failed") return 2;
  return status == "interrupted" ? 0 : 1;
}

/// Equal as far as runs with other numbers of threads are apart from their last bits.
bool agree(double a, double b) {
  constexpr double kRelative = 1e-6;
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
  return a == b || std::abs(a - b) <= kRelative * std::max(std::abs(a), std::abs(b));
}

/// The first metric in which two results of one cell differ, as a sentence. Times always differ and
/// are left out.
std::string disagreement(const CellResult& a, const CellResult& b, const fs::path& path_a,
                         const fs::path& path_b) {
  for (const auto& [name, value] : a.scalars) {
    const metrics::MetricInfo* info = metrics::find_metric(name);
    if (info && info->measure == "kernel_time") continue;
    const auto other = b.scalars.find(name);
    if (other == b.scalars.end()) continue;
    if (!agree(value, other->second)) {
      return fmt::format(
          "two results of this cell differ: {} is {} in {} and {} in {}; the first is kept", name,
          value, path_a.string(), other->second, path_b.string());
    }
  }
  return "";
}

/// Gathers inputs one by one.
class Merger {
 public:
  void add(const fs::path& path) {
    Loaded input = load(path, Detail::light);
    if (paths_.empty()) {
      results_ = input.results;
      results_.cells.clear();
      results_.rows.clear();
    } else {
      check_same(path, input.results);
      add_attributes(input.results);
    }
    paths_.push_back(path);
    refuse_damaged(path, input.results);
    for (const SummaryRow& row : input.results.rows) add_row(row);
    for (auto& [id, cell] : input.results.cells) add_cell(id, cell, path, input.sources.at(id));
  }

  /// Throws Error where `out`, which is no input, holds something that the merged file would not.
  void check_loses_nothing(const fs::path& out) const {
    if (!fs::exists(out)) return;
    const Results old = load(out, Detail::light).results;
    const std::string difference =
        experiment_difference(results_.experiment_resolved, old.experiment_resolved,
                              paths_.front().string(), out.string());
    if (!difference.empty()) {
      throw Error(
          fmt::format("{}: is there already and holds another experiment ({}): choose another "
                      "output, or remove it",
                      out.string(), difference));
    }
    const auto lost = std::count_if(old.cells.begin(), old.cells.end(), [&](const auto& entry) {
      const auto found = results_.cells.find(entry.first);
      return entry.second.status == "complete" &&
             (found == results_.cells.end() || found->second.status != "complete");
    });
    if (lost > 0) {
      throw Error(
          fmt::format("{}: is there already, with {} complete cells that no input has: name it "
                      "among the inputs, or choose another output",
                      out.string(), lost));
    }
  }

  MergeReport write(const fs::path& out, const std::map<std::string, std::string>& attributes) {
    for (const auto& [number, row] : rows_) results_.rows.push_back(row);
    for (SummaryRow& row : results_.rows) {
      const auto found = disagreements_.find(row.cell);
      if (found != disagreements_.end()) row.warnings.push_back(found->second);
    }
    for (const auto& [name, value] : attributes) results_.attributes[name] = value;
    write_file(out, results_, sources_);
    MergeReport report;
    report.rows = static_cast<int64_t>(results_.rows.size());
    report.cells = static_cast<int64_t>(results_.cells.size());
    for (const auto& [id, text] : disagreements_) {
      report.warnings.push_back(fmt::format("cell {}: {}", id, text));
    }
    const std::string missing = missing_rows_text(results_);
    if (!missing.empty()) report.warnings.push_back(missing);
    return report;
  }

 private:
  static void refuse_damaged(const fs::path& path, const Results& results) {
    std::set<std::string> complete;
    for (const auto& [id, cell] : results.cells) {
      if (cell.status == "complete") complete.insert(id);
    }
    const std::set<std::string> damaged = damaged_cells(path, complete);
    if (damaged.empty()) return;
    throw Error(fmt::format(
        "{}: {} {} not what was written: the checksum differs, as of {}; run the "
        "experiment into this file once more, which computes {} again",
        path.string(), counted(std::ssize(damaged), "cell"), damaged.size() == 1 ? "is" : "are",
        *damaged.begin(), damaged.size() == 1 ? "it" : "them"));
  }

  void check_same(const fs::path& path, const Results& other) const {
    const std::string first = paths_.front().string();
    const std::string difference = experiment_difference(
        results_.experiment_resolved, other.experiment_resolved, first, path.string());
    if (!difference.empty() || results_.axes != other.axes) {
      throw Error(fmt::format("{}: holds another experiment: {}", path.string(),
                              difference.empty() ? "the sweep axes differ" : difference));
    }
    const std::string a = results_.attribute("code_version");
    const std::string b = other.attribute("code_version");
    if (a != b) {
      throw Error(
          fmt::format("{}: made by code version {}, and {} by {}: results of different code are "
                      "not mixed; run one of them again",
                      path.string(), b, first, a));
    }
  }

  /// Keeps all distinct values: shards may come from several machines.
  void add_attributes(const Results& other) {
    for (const auto& [name, value] : other.attributes) {
      std::string& all = results_.attributes[name];
      if (("; " + all + "; ").find("; " + value + "; ") != std::string::npos) continue;
      all += all.empty() ? value : "; " + value;
    }
  }

  void add_row(const SummaryRow& row) {
    const auto [found, added] = rows_.emplace(row.row, row);
    if (added) return;
    if (found->second.cell != row.cell) {
      throw Error(
          fmt::format("{}: row {} is cell {}, in an earlier input it is cell {}: the data or the "
                      "calibration of the runs differ",
                      paths_.back().string(), row.row, row.cell, found->second.cell));
    }
    for (const std::string& warning : row.warnings) add_once(&found->second.warnings, warning);
  }

  void add_cell(const std::string& id, CellResult& cell, const fs::path& path,
                const fs::path& source) {
    const auto found = results_.cells.find(id);
    if (found != results_.cells.end()) {
      const int known = rank_of(found->second.status);
      if (known == 3 && cell.status == "complete") {
        const std::string text = disagreement(found->second, cell, origin_.at(id), path);
        if (!text.empty()) disagreements_.emplace(id, text);
      }
      if (known >= rank_of(cell.status)) return;
    }
    results_.cells[id] = std::move(cell);
    sources_[id] = source;
    origin_[id] = path;
  }

  std::vector<fs::path> paths_;
  Results results_;
  Sources sources_;
  Sources origin_;  // the input each cell was taken from
  std::map<int64_t, SummaryRow> rows_;
  std::map<std::string, std::string> disagreements_;
};

}  // namespace

MergeReport merge(const fs::path& out, const std::vector<fs::path>& inputs,
                  const std::map<std::string, std::string>& attributes) {
  if (inputs.empty()) throw Error("merge needs at least one results file to read");
  const RunLock lock(out);
  const bool is_input = std::any_of(inputs.begin(), inputs.end(), [&](const fs::path& path) {
    std::error_code error;
    return fs::equivalent(path, out, error);
  });
  const Parts parts = find_parts(out);
  if (!is_input && !parts.files.empty()) {
    throw Error(
        fmt::format("{}: holds {} finished cells of a run into {}; name that file among the "
                    "inputs, or choose another output",
                    parts_folder(out).string(), parts.files.size(), out.string()));
  }
  Merger merger;
  for (const fs::path& input : inputs) merger.add(input);
  if (!is_input) merger.check_loses_nothing(out);
  const MergeReport report = merger.write(out, attributes);
  remove_parts(out, parts);
  return report;
}

}  // namespace kvlab::store
