#pragma once

#include <string>
#include <vector>

#include "config/experiment.h"

/// Points of a sweep and what they make of a dataset item and of a recipe.
namespace kvlab::config {

/// One value an axis.
using Point = std::vector<nlohmann::json>;

/// Keys of the axes: those of the grid, then those that walk in step.
std::vector<std::string> axis_names(const Experiment& experiment);

/// An axis by its place in axis_names().
const SweepAxis& axis_at(const Experiment& experiment, size_t axis);

/// The values of an axis by its place in axis_names().
const std::vector<nlohmann::json>& axis_values(const Experiment& experiment, size_t axis);

/// How many points there are, at most `most` + 1: a grid multiplies faster than memory grows.
size_t count_points(const Experiment& experiment, size_t most);

/// Every point, the first axis slowest. One empty point where there is no sweep.
std::vector<Point> sweep_points(const Experiment& experiment);

/// The stretch of a capture that calibrates: axes beside those of recipes and of data.
inline constexpr const char* kCalibrationFrom = "calibration.from";
inline constexpr const char* kCalibrationTokens = "calibration.tokens";
bool is_calibration_axis(const std::string& axis);

/// Whether the axis is a key of data or of calibration, not of a recipe.
bool is_dataset_axis(const std::string& axis);

/// The calibration sets with the point's stretch; synthetic ones stay as they are.
std::vector<DatasetItem> calibration_at_point(const std::vector<DatasetItem>& calibration,
                                              const std::vector<std::string>& axes,
                                              const Point& point);

/// The item with the point's values for synthetic data; of a capture, its first `tokens`.
DatasetItem at_point(const DatasetItem& item, const std::vector<std::string>& axes,
                     const Point& point);

/// The recipe with the point's edits, layer rules kept.
method::Recipe at_point(const method::Recipe& recipe, const std::vector<std::string>& axes,
                        const Point& point);

/// The parameters of synthetic data that mean something beside the others.
nlohmann::json used_params(const DatasetItem& item);

}  // namespace kvlab::config
