#include "config/data_check.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <tuple>

#include "base/names.h"
#include "config/calibration_check.h"

namespace kvlab::config {
namespace {

bool is_there(const DatasetItem& item) {
  std::vector<std::filesystem::path> paths = {item.path};
  if (item.model) {
    paths.push_back(item.model->needles.empty() ? item.model->tokens : item.model->needles);
  }
  std::error_code ignored;
  return std::all_of(paths.begin(), paths.end(),
                     [&](const auto& path) { return std::filesystem::exists(path, ignored); });
}

/// What is measured of a passage needs tokens: a next one to predict, and a prompt where the first
/// half is one.
int64_t fewest_tokens(const ModelRun& run, const std::vector<std::string>& measure) {
  const bool scores = std::find(measure.begin(), measure.end(), "perplexity") != measure.end();
  return scores && run.prefill == "exact" ? 3 : 2;
}

class DataCheck {
 public:
  DataCheck(const std::vector<std::string>& measure, const Describe& describe)
      : measure_(measure), describe_(describe) {}

  void look_at(const DatasetItem& item) {
    for (const DatasetItem& calibration : item.calibration) look_at(calibration);
    if (item.source == "synthetic" || !is_there(item)) return;
    try {
      const DatasetInfo info = describe_(item);
      const std::vector<int64_t>& held = info.layers;
      if (item.model && info.tokens < fewest_tokens(*item.model, measure_)) {
        problem(item.mark, fmt::format("{}: a passage of {} is too short: prefill {} needs {}",
                                       item.model->tokens.string(), counted(info.tokens, "token"),
                                       item.model->prefill, fewest_tokens(*item.model, measure_)));
      }
      for (size_t i = 0; i < item.layers.size(); ++i) {
        if (std::find(held.begin(), held.end(), item.layers[i]) != held.end()) continue;
        problem(item.layer_marks[i],
                fmt::format("{} has no layer {} (available: {})", name_of(item), item.layers[i],
                            fmt::join(held, ", ")));
      }
    } catch (const Error& error) {
      problem(item.mark, error.what());
    }
  }

  std::vector<Problem> take() { return std::move(problems_); }

 private:
  void problem(const Mark& mark, const std::string& message) {
    if (!told_.emplace(mark.file, mark.line, mark.column).second) return;
    problems_.push_back({mark.file, mark.line, mark.column, message});
  }

  const std::vector<std::string>& measure_;
  const Describe& describe_;
  std::vector<Problem> problems_;
  std::set<std::tuple<std::string, int, int>> told_;
};

}  // namespace

std::vector<Problem> data_problems(const Experiment& experiment,
                                   const std::vector<std::string>& axes,
                                   const std::vector<Point>& points, const Describe& describe) {
  DataCheck check(experiment.measure, describe);
  for (const Point& point : points) {
    for (const DatasetItem& item : experiment.datasets) {
      check.look_at(at_point(item, axes, point));
    }
    for (const DatasetItem& item : calibration_at_point(experiment.calibration, axes, point)) {
      check.look_at(item);
    }
  }
  return check.take();
}

}  // namespace kvlab::config
