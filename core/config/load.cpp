#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "base/names.h"
#include "config/data_check.h"
#include "config/document.h"
#include "config/experiment.h"
#include "config/reader.h"
#include "config/sweep.h"

namespace kvlab::config {
namespace {

using yaml::Node;

constexpr int64_t kSchema = 1;

bool is_file_name(const std::string& name) {
  return !name.empty() && name.front() != '.' && name.find('/') == std::string::npos &&
         !has_control(name);
}

void read_head(yaml::Fields& fields, Experiment& experiment, Reading& reading) {
  if (const Node* schema = fields.get("schema")) {
    const auto version = yaml::read_int(*schema, "schema", reading.problems);
    if (version && *version != kSchema) {
      yaml::report(
          reading.problems, *schema,
          fmt::format("schema {} is not known: this release reads schema {}", *version, kSchema));
    }
  }
  if (const Node* name = fields.get("name")) {
    const auto text = yaml::read_text(*name, "name", reading.problems);
    experiment.name = text.value_or("");
    if (text && !is_file_name(*text)) {
      yaml::report(
          reading.problems, *name,
          fmt::format("'name' names the results file: it cannot be empty, begin with '.' or "
                      "hold '/' or control characters, found {}",
                      yaml::describe(*name)));
    }
  }
  if (experiment.name.empty()) experiment.name = experiment.file.stem().string();
  if (const Node* description = fields.get("description")) {
    experiment.description =
        yaml::read_text(*description, "description", reading.problems).value_or("");
  }
  experiment.output = "results/" + experiment.name + ".h5";
  if (const Node* output = fields.get("output")) {
    if (const auto path = yaml::read_text(*output, "output", reading.problems)) {
      experiment.output = *path;
      if (path->empty() || path->ends_with('/')) {
        yaml::report(reading.problems, *output, "'output' must name a file");
      }
    }
  }
}

/// Keys of the sweep as written; whether they are right is seen later.
std::set<std::string> axes_of(const Node& root) {
  std::set<std::string> axes;
  const Node* sweep = root.find("sweep");
  for (const char* kind : {"grid", "zip"}) {
    const Node* map = sweep != nullptr ? sweep->find(kind) : nullptr;
    if (map == nullptr) continue;
    for (const yaml::Member& member : map->members) axes.insert(member.key);
  }
  return axes;
}

void read_sections(const Node& root, Experiment& experiment, Reading& reading) {
  yaml::Fields fields(root, "the experiment", reading.problems);
  read_head(fields, experiment, reading);
  const auto required = [&](const char* key) {
    const Node* node = fields.get(key);
    if (node == nullptr && root.is_map()) {
      yaml::report(reading.problems, root, fmt::format("'{}' is missing", key));
    }
    return node;
  };
  if (const Node* node = required("dataset")) experiment.datasets = read_datasets(*node, reading);
  if (const Node* node = required("methods")) experiment.methods = read_methods(*node, reading);
  if (const Node* node = fields.get("seeds")) experiment.seeds = read_seeds(*node, reading);
  if (const Node* node = fields.get("sweep")) read_sweep(*node, experiment, reading);
  if (const Node* node = fields.get("exclude")) {
    experiment.excludes = read_excludes(*node, experiment, reading);
  }
  if (const Node* node = fields.get("backend")) experiment.backend = read_backend(*node, reading);
  if (has_models(experiment)) experiment.measure = {"perplexity"};
  if (const Node* node = fields.get("measure")) {
    experiment.measure = read_measure(*node, experiment, reading);
  }
  if (const Node* node = fields.get("probes")) experiment.probes = read_probes(*node, reading);
  if (const Node* node = fields.get("calibration")) {
    experiment.calibration.push_back(read_calibration(*node, "the calibration", reading));
  }
  if (const Node* node = fields.get("published")) read_published(*node, reading);
  read_model_settings(fields, experiment, reading);
  fields.get("include");
  fields.finish([](const std::string& key) -> std::string {
    if (!method::is_recipe_key(key)) return "";
    return " (it is a key of a method: see 'methods' and 'sweep')";
  });
}

/// What an axis of the sweep says of a stretch, the item does not.
void add_data_problems(Experiment experiment, Reading& reading, const Describe& describe) {
  const auto forget = [&](DatasetItem& item, const char* first, const char* count) {
    if (reading.axes.contains(first)) item.stretch.first = 0;
    if (reading.axes.contains(count)) item.stretch.count = 0;
  };
  for (DatasetItem& item : experiment.datasets) {
    forget(item, "", "tokens");
    for (DatasetItem& own : item.calibration) forget(own, kCalibrationFrom, kCalibrationTokens);
  }
  for (DatasetItem& item : experiment.calibration) {
    forget(item, kCalibrationFrom, kCalibrationTokens);
  }
  for (Problem& problem : data_problems(experiment, {}, {Point{}}, describe)) {
    reading.problems.push_back(std::move(problem));
  }
}

}  // namespace

Experiment load(const std::filesystem::path& file, const std::vector<std::string>& edits,
                const Describe* describe) {
  yaml::Problems problems;
  Experiment experiment;
  experiment.file = file;
  experiment.measure = {"error", "attention", "tni", "memory"};
  Document document = read_document(file, edits, problems);
  if (!document.complete) throw ConfigError(std::move(problems));
  inline_published(document.root, file.parent_path(), problems);

  Reading reading{
      .folder = file.parent_path(), .problems = problems, .axes = axes_of(document.root)};
  read_sections(document.root, experiment, reading);
  if (!problems.empty()) {
    if (describe != nullptr) add_data_problems(experiment, reading, *describe);
    std::stable_sort(problems.begin(), problems.end(), [](const Problem& a, const Problem& b) {
      return std::tie(a.file, a.line, a.column) < std::tie(b.file, b.line, b.column);
    });
    throw ConfigError(std::move(problems));
  }
  experiment.source_text = document.source;
  experiment.resolved_text = yaml::to_text(document.root);
  return experiment;
}

}  // namespace kvlab::config
