#include "config/exclusion.h"

#include <algorithm>

namespace kvlab::config {
namespace {

using nlohmann::json;

bool is_one_of(const json& value, const json& wanted) {
  if (!wanted.is_array()) return wanted == value;
  return std::find(wanted.begin(), wanted.end(), value) != wanted.end();
}

bool holds(const std::string& key, const json& wanted, const Experiment& experiment,
           const Place& place, const Point& point) {
  if (key == "method") {
    const MethodUse& use = experiment.methods[place.method];
    return is_one_of(use.label, wanted) || is_one_of(use.recipe.id, wanted);
  }
  if (key == "dataset") return is_one_of(experiment.datasets[place.dataset].label, wanted);
  if (key == "layer") return is_one_of(place.layer, wanted);
  if (key == "seed") return is_one_of(place.seed, wanted);
  const std::vector<std::string> axes = axis_names(experiment);
  const auto axis = std::find(axes.begin(), axes.end(), key);
  return axis != axes.end() && is_one_of(point[static_cast<size_t>(axis - axes.begin())], wanted);
}

}  // namespace

std::optional<size_t> exclusion_of(const Experiment& experiment, const Place& place,
                                   const Point& point) {
  for (size_t i = 0; i < experiment.excludes.size(); ++i) {
    bool covered = true;
    for (const auto& [key, wanted] : experiment.excludes[i].when.items()) {
      covered = covered && holds(key, wanted, experiment, place, point);
    }
    if (covered) return i;
  }
  return std::nullopt;
}

}  // namespace kvlab::config
