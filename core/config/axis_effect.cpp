#include "config/axis_effect.h"

#include <algorithm>

#include "config/sweep.h"

namespace kvlab::config {
namespace {

/// The point with one axis moved to other values. In a grid every value stands beside every point
/// of the other axes, so that moving each to the first one finds any difference; a zip needs all.
/// An axis of one value has no other: the point itself.
std::vector<Point> moved(const Experiment& experiment, const Point& point, size_t axis) {
  const std::vector<nlohmann::json>& values = axis_values(experiment, axis);
  const size_t others = axis < experiment.grid.size() ? 1 : values.size();
  std::vector<Point> points;
  for (size_t i = 0; i < others; ++i) {
    if (values[i] == point[axis] && values.size() > 1) continue;
    points.push_back(point);
    points.back()[axis] = values[i];
  }
  return points;
}

class EffectSearch {
 public:
  EffectSearch(const Experiment& experiment, const std::set<int64_t>& head_dims)
      : experiment_(experiment),
        head_dims_(head_dims),
        axes_(axis_names(experiment)),
        points_(sweep_points(experiment)) {}

  bool is_idle(size_t axis) const {
    return is_dataset_axis(axes_[axis]) ? !changes_a_dataset(axis) : !changes_a_method(axis);
  }

 private:
  /// A stretch of a capture, or of one that calibrates.
  bool changes_a_stretch(size_t axis) const {
    const auto has_capture = [](const std::vector<DatasetItem>& items) {
      return std::any_of(items.begin(), items.end(),
                         [](const DatasetItem& item) { return item.source == "capture"; });
    };
    if (axes_[axis] == "tokens") return has_capture(experiment_.datasets);
    if (!is_calibration_axis(axes_[axis])) return false;
    return has_capture(experiment_.calibration) ||
           std::any_of(experiment_.datasets.begin(), experiment_.datasets.end(),
                       [&](const DatasetItem& item) { return has_capture(item.calibration); });
  }

  bool changes_a_dataset(size_t axis) const {
    if (changes_a_stretch(axis)) return true;
    return std::any_of(experiment_.datasets.begin(), experiment_.datasets.end(),
                       [&](const DatasetItem& item) {
                         return any_move(axis, [&](const Point& from, const Point& to) {
                           const nlohmann::json before = used_params(at_point(item, axes_, from));
                           if (from == to) return before.contains(axes_[axis]);
                           return before != used_params(at_point(item, axes_, to));
                         });
                       });
  }

  bool changes_a_method(size_t axis) const {
    return std::any_of(experiment_.methods.begin(), experiment_.methods.end(),
                       [&](const MethodUse& use) { return changes(use.recipe, axis); });
  }

  bool changes(const method::Recipe& recipe, size_t axis) const {
    return any_move(axis, [&](const Point& from, const Point& to) {
      const method::Recipe before = at_point(recipe, axes_, from);
      // An unused key stays unused whatever its own value, and most methods use few keys.
      if (!method::is_used(before, axes_[axis])) return false;
      if (from == to) return true;
      const method::Recipe after = at_point(recipe, axes_, to);
      return std::any_of(head_dims_.begin(), head_dims_.end(), [&](int64_t head_dim) {
        return method::canonical(before, head_dim) != method::canonical(after, head_dim);
      });
    });
  }

  template <typename Differs>
  bool any_move(size_t axis, Differs differs) const {
    for (const Point& point : points_) {
      for (const Point& other : moved(experiment_, point, axis)) {
        if (differs(point, other)) return true;
      }
    }
    return false;
  }

  const Experiment& experiment_;
  const std::set<int64_t>& head_dims_;
  std::vector<std::string> axes_;
  std::vector<Point> points_;
};

}  // namespace

std::vector<size_t> idle_axes(const Experiment& experiment, const std::set<int64_t>& head_dims) {
  const EffectSearch search(experiment, head_dims);
  std::vector<size_t> idle;
  for (size_t i = 0; i < axis_names(experiment).size(); ++i) {
    if (search.is_idle(i)) idle.push_back(i);
  }
  return idle;
}

}  // namespace kvlab::config
