#include "config/sweep.h"

#include <algorithm>
#include <stdexcept>

#include "data/synthetic_params.h"

namespace kvlab::config {

std::vector<std::string> axis_names(const Experiment& experiment) {
  std::vector<std::string> names;
  for (const SweepAxis& axis : experiment.grid) names.push_back(axis.key);
  for (const SweepAxis& axis : experiment.zip) names.push_back(axis.key);
  return names;
}

const SweepAxis& axis_at(const Experiment& experiment, size_t axis) {
  const size_t in_grid = experiment.grid.size();
  return axis < in_grid ? experiment.grid[axis] : experiment.zip[axis - in_grid];
}

const std::vector<nlohmann::json>& axis_values(const Experiment& experiment, size_t axis) {
  return axis_at(experiment, axis).values;
}

size_t count_points(const Experiment& experiment, size_t most) {
  size_t count = experiment.zip.empty() ? 1 : experiment.zip.front().values.size();
  for (const SweepAxis& axis : experiment.grid) {
    if (axis.values.size() > most / count) return most + 1;
    count *= axis.values.size();
  }
  return std::min(count, most + 1);
}

std::vector<Point> sweep_points(const Experiment& experiment) {
  std::vector<Point> points = {{}};
  for (const SweepAxis& axis : experiment.grid) {
    std::vector<Point> longer;
    for (const Point& point : points) {
      for (const nlohmann::json& value : axis.values) {
        longer.push_back(point);
        longer.back().push_back(value);
      }
    }
    points = std::move(longer);
  }
  if (experiment.zip.empty()) return points;
  std::vector<Point> longer;
  for (const Point& point : points) {
    for (size_t step = 0; step < experiment.zip.front().values.size(); ++step) {
      longer.push_back(point);
      for (const SweepAxis& axis : experiment.zip) longer.back().push_back(axis.values[step]);
    }
  }
  return longer;
}

bool is_calibration_axis(const std::string& axis) {
  return axis == kCalibrationFrom || axis == kCalibrationTokens;
}

bool is_dataset_axis(const std::string& axis) {
  if (is_calibration_axis(axis)) return true;
  const auto& params = data::synthetic_params();
  return std::any_of(params.begin(), params.end(),
                     [&](const Param& param) { return param.key == axis; });
}

DatasetItem at_point(const DatasetItem& item, const std::vector<std::string>& axes,
                     const Point& point) {
  DatasetItem edited = item;
  for (size_t i = 0; i < axes.size(); ++i) {
    if (edited.params.contains(axes[i])) edited.params[axes[i]] = point[i];
    if (edited.source == "capture" && axes[i] == "tokens") {
      edited.stretch.count = point[i].get<int64_t>();
    }
  }
  edited.calibration = calibration_at_point(item.calibration, axes, point);
  return edited;
}

std::vector<DatasetItem> calibration_at_point(const std::vector<DatasetItem>& calibration,
                                              const std::vector<std::string>& axes,
                                              const Point& point) {
  std::vector<DatasetItem> edited = calibration;
  for (DatasetItem& item : edited) {
    if (item.source != "capture") continue;
    for (size_t i = 0; i < axes.size(); ++i) {
      if (axes[i] == kCalibrationFrom) item.stretch.first = point[i].get<int64_t>();
      if (axes[i] == kCalibrationTokens) item.stretch.count = point[i].get<int64_t>();
    }
  }
  return edited;
}

method::Recipe at_point(const method::Recipe& recipe, const std::vector<std::string>& axes,
                        const Point& point) {
  method::Recipe edited = recipe;
  for (size_t i = 0; i < axes.size(); ++i) {
    if (is_dataset_axis(axes[i])) continue;
    if (auto wrong = method::apply_edit(edited, axes[i], point[i])) throw std::logic_error(*wrong);
  }
  return edited;
}

nlohmann::json used_params(const DatasetItem& item) {
  nlohmann::json params = nlohmann::json::object();
  if (item.source != "synthetic") return params;
  for (const Param& param : data::synthetic_params()) {
    if (!param.used || param.used(item.params)) params[param.key] = item.params.at(param.key);
  }
  return params;
}

}  // namespace kvlab::config
