#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/names.h"
#include "config/document.h"
#include "config/reader.h"
#include "config/sweep.h"
#include "data/synthetic_params.h"
#include "method/schema.h"
#include "method/values.h"

namespace kvlab::config {
namespace {

using yaml::Node;

const Param* find_synthetic(const std::string& key) {
  for (const Param& param : data::synthetic_params()) {
    if (param.key == key) return &param;
  }
  return nullptr;
}

std::vector<std::string> axis_keys() {
  std::vector<std::string> keys = method::recipe_keys();
  for (const Param& param : data::synthetic_params()) keys.push_back(param.key);
  keys.insert(keys.end(), {kCalibrationFrom, kCalibrationTokens});
  return keys;
}

/// What is wrong with a value of an axis; brings it to the stored form.
std::optional<std::string> wrong_value(const std::string& key, nlohmann::json& value) {
  if (is_calibration_axis(key)) {
    const int64_t least = key == kCalibrationFrom ? 0 : 1;
    if (value.is_number_integer() && value.get<int64_t>() >= least) return std::nullopt;
    return fmt::format("'{}' must be a whole number from {} on, found {}", key, least,
                       plain(value));
  }
  if (const Param* param = find_synthetic(key)) return method::check_value(*param, key, value);
  method::Recipe scratch;
  return method::apply_edit(scratch, key, value);
}

/// Checks one value of an axis; a rotation's file is resolved. In a zip a value may stand in
/// several steps.
void read_value(const Node& node, bool may_repeat, SweepAxis& axis, Reading& reading) {
  nlohmann::json value = yaml::to_json(node);
  if (auto wrong = wrong_value(axis.key, value)) {
    yaml::report(reading.problems, node, *wrong);
    return;
  }
  if (value.is_string() && value.get<std::string>().starts_with(method::kFilePrefix)) {
    const std::string path = value.get<std::string>().substr(method::kFilePrefix.size());
    value =
        method::kFilePrefix + resolve_path(path, reading.folder, node, reading.problems).string();
  }
  const bool is_known =
      std::find(axis.values.begin(), axis.values.end(), value) != axis.values.end();
  if (is_known && !may_repeat) {
    yaml::report(reading.problems, node,
                 fmt::format("axis '{}' has the value {} twice", axis.key, plain(value)));
  }
  axis.values.push_back(std::move(value));
}

bool has_source(const Experiment& experiment, const char* source) {
  return std::any_of(experiment.datasets.begin(), experiment.datasets.end(),
                     [&](const DatasetItem& item) { return item.source == source; });
}

std::optional<std::string> wrong_axis(const std::string& key, const Experiment& experiment) {
  if (key == "seed" || key == "seeds") return "seeds are no sweep axis: list them under 'seeds'";
  if (is_calibration_axis(key)) return std::nullopt;
  if (find_synthetic(key) != nullptr) {
    if (has_source(experiment, "synthetic")) return std::nullopt;
    if (key == "tokens" && has_source(experiment, "capture")) return std::nullopt;
    return fmt::format("axis '{}' is a key of synthetic datasets, and none is listed", key);
  }
  if (method::is_recipe_key(key)) return std::nullopt;
  return fmt::format("unknown sweep axis '{}'{}", key, did_you_mean(key, axis_keys()));
}

std::vector<SweepAxis> read_axes(const Node& node, const std::string& what,
                                 const Experiment& experiment, Reading& reading) {
  std::vector<SweepAxis> axes;
  if (!node.is_map()) {
    yaml::report(reading.problems, node,
                 fmt::format("'sweep.{}' must be a map of keys to lists, found {}", what,
                             yaml::describe(node)));
  }
  for (const yaml::Member& member : node.members) {
    if (auto wrong = wrong_axis(member.key, experiment)) {
      reading.problems.push_back({member.value.file, member.line, member.column, *wrong});
      continue;
    }
    SweepAxis axis{
        .key = member.key, .values = {}, .mark = {member.value.file, member.line, member.column}};
    if (!member.value.is_list() || member.value.items.empty()) {
      yaml::report(reading.problems, member.value,
                   fmt::format("axis '{}' must be a list of values, found {}", member.key,
                               yaml::describe(member.value)));
    }
    for (const Node& value : member.value.items) read_value(value, what == "zip", axis, reading);
    axes.push_back(std::move(axis));
  }
  return axes;
}

/// No step of a zip stands twice.
void check_steps(const Node& zip, const Experiment& experiment, Reading& reading) {
  if (experiment.zip.empty()) return;
  std::set<nlohmann::json> steps;
  for (size_t i = 0; i < experiment.zip.front().values.size(); ++i) {
    nlohmann::json step = nlohmann::json::object();
    for (const SweepAxis& axis : experiment.zip) {
      if (i < axis.values.size()) step[axis.key] = axis.values[i];
    }
    if (steps.insert(step).second) continue;
    yaml::report(reading.problems, zip, "'sweep.zip' has the step " + step.dump() + " twice");
  }
}

std::vector<std::string> when_keys(const Experiment& experiment) {
  std::vector<std::string> keys = {"method", "dataset", "layer", "seed"};
  for (const SweepAxis& axis : experiment.grid) keys.push_back(axis.key);
  for (const SweepAxis& axis : experiment.zip) keys.push_back(axis.key);
  return keys;
}

/// The word is a label or id that is listed, or an id that could be: `--set methods=…` must not
/// break an exclusion.
std::optional<std::string> wrong_method(const std::string& word, const Experiment& experiment) {
  std::vector<std::string> names;
  for (const MethodUse& use : experiment.methods) {
    names.push_back(use.label);
    if (use.recipe.id != use.label) names.push_back(use.recipe.id);
  }
  // An experiment without usable methods has been told so already.
  const bool known = names.empty() || std::find(names.begin(), names.end(), word) != names.end();
  if (known || !method::wrong_id(word)) return std::nullopt;
  return fmt::format("no method of this experiment is '{}'{}", word, yaml::hint(word, names));
}

std::optional<std::string> wrong_dataset(const std::string& word, const Experiment& experiment) {
  std::vector<std::string> labels;
  for (const DatasetItem& item : experiment.datasets) labels.push_back(item.label);
  if (std::find(labels.begin(), labels.end(), word) != labels.end()) return std::nullopt;
  return fmt::format("no dataset of this experiment is '{}'{}", word, yaml::hint(word, labels));
}

void check_when_value(const std::string& key, const Node& node, const Experiment& experiment,
                      Reading& reading) {
  std::optional<std::string> wrong;
  if (key == "layer" || key == "seed") {
    yaml::read_int(node, "when." + key, reading.problems, 0);
  } else if (key == "method" || key == "dataset") {
    const auto word = yaml::read_text(node, "when." + key, reading.problems);
    if (!word) return;
    wrong = key == "method" ? wrong_method(*word, experiment) : wrong_dataset(*word, experiment);
  } else {
    nlohmann::json value = yaml::to_json(node);
    wrong = wrong_value(key, value);
  }
  if (wrong) yaml::report(reading.problems, node, *wrong);
}

nlohmann::json read_when(const Node& node, const Experiment& experiment, Reading& reading) {
  if (!node.is_map() || node.members.empty()) {
    yaml::report(reading.problems, node,
                 "'when' must be a map of what to leave out, found " + yaml::describe(node));
    return nlohmann::json::object();
  }
  const std::vector<std::string> keys = when_keys(experiment);
  for (const yaml::Member& member : node.members) {
    if (std::find(keys.begin(), keys.end(), member.key) == keys.end()) {
      reading.problems.push_back(
          {member.value.file, member.line, member.column,
           fmt::format("unknown key '{}' in 'when'{}", member.key, yaml::hint(member.key, keys))});
    } else if (member.value.is_list()) {
      for (const Node& value : member.value.items) {
        check_when_value(member.key, value, experiment, reading);
      }
    } else {
      check_when_value(member.key, member.value, experiment, reading);
    }
  }
  return yaml::to_json(node);
}

}  // namespace

void read_sweep(const Node& node, Experiment& experiment, Reading& reading) {
  yaml::Fields fields(node, "'sweep'", reading.problems);
  if (const Node* grid = fields.get("grid")) {
    experiment.grid = read_axes(*grid, "grid", experiment, reading);
  }
  if (const Node* zip = fields.get("zip")) {
    experiment.zip = read_axes(*zip, "zip", experiment, reading);
    for (const SweepAxis& axis : experiment.zip) {
      if (axis.values.size() != experiment.zip.front().values.size()) {
        yaml::report(reading.problems, *zip,
                     fmt::format("lists of 'sweep.zip' must be equally long: '{}' has {}, "
                                 "'{}' has {}",
                                 experiment.zip.front().key,
                                 counted(std::ssize(experiment.zip.front().values), "value"),
                                 axis.key, axis.values.size()));
      }
    }
    check_steps(*zip, experiment, reading);
    for (const SweepAxis& axis : experiment.zip) {
      for (const SweepAxis& other : experiment.grid) {
        if (other.key != axis.key) continue;
        yaml::report(reading.problems, *zip,
                     fmt::format("axis '{}' is in grid and in zip", axis.key));
      }
    }
  }
  fields.finish();
}

std::vector<Exclude> read_excludes(const Node& node, const Experiment& experiment,
                                   Reading& reading) {
  std::vector<Exclude> excludes;
  if (!node.is_list()) {
    yaml::report(reading.problems, node,
                 "'exclude' must be a list of {when, reason}, found " + yaml::describe(node));
  }
  for (const Node& item : node.items) {
    Exclude exclude;
    exclude.mark = mark_of(item);
    yaml::Fields fields(item, "an exclusion", reading.problems);
    if (!item.is_map()) continue;
    if (const Node* when = fields.get("when")) {
      exclude.when = read_when(*when, experiment, reading);
    } else {
      yaml::report(reading.problems, item, "an exclusion needs 'when'");
    }
    if (const Node* reason = fields.get("reason")) {
      exclude.reason = read_line(*reason, "reason", reading);
    } else {
      yaml::report(reading.problems, item, "an exclusion needs a 'reason'");
    }
    fields.finish();
    excludes.push_back(std::move(exclude));
  }
  return excludes;
}

}  // namespace kvlab::config
