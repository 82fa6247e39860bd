#pragma once

#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "base/yaml.h"
#include "config/experiment.h"

/// The sections of an experiment file. Each reader reports every mistake at its place and returns
/// what it could read.
namespace kvlab::config {

/// What a reader needs besides its node.
struct Reading {
  std::filesystem::path folder;  // of the experiment file
  yaml::Problems& problems;
  std::set<std::string> axes = {};  // of the sweep: what an item says of them holds nowhere
};

/// The node's place.
inline Mark mark_of(const yaml::Node& node) { return {node.file, node.line, node.column}; }

/// What tables show in one cell or line, such as a `label:`: text that is not empty and holds no
/// control characters. `what` names it in messages.
std::string read_line(const yaml::Node& node, const std::string& what, Reading& reading);

std::vector<DatasetItem> read_datasets(const yaml::Node& node, Reading& reading);

/// One item of `calibration:`; `what` names it in messages.
DatasetItem read_calibration(const yaml::Node& node, const std::string& what, Reading& reading);

/// The keys of a `source: model` item but for label and calibration.
void read_model(yaml::Fields& fields, const yaml::Node& node, DatasetItem& item, Reading& reading);

/// A model item once for each of its passages or tasks, any other as it is.
std::vector<DatasetItem> parts_of(DatasetItem item, const yaml::Node& node, Reading& reading);

/// An experiment is about whole models or about samples, not both.
void check_sources(const std::vector<DatasetItem>& items, Reading& reading);

/// `evaluation`, `cache_dtype` and `prefill`, which all model items share.
void read_model_settings(yaml::Fields& fields, Experiment& experiment, Reading& reading);

bool has_models(const Experiment& experiment);

std::vector<MethodUse> read_methods(const yaml::Node& node, Reading& reading);

/// Fills grid and zip of the experiment, whose datasets and methods are there.
void read_sweep(const yaml::Node& node, Experiment& experiment, Reading& reading);

/// Reads `exclude:` of an experiment that is complete but for it.
std::vector<Exclude> read_excludes(const yaml::Node& node, const Experiment& experiment,
                                   Reading& reading);

Probes read_probes(const yaml::Node& node, Reading& reading);
std::vector<std::string> read_measure(const yaml::Node& node, const Experiment& experiment,
                                      Reading& reading);
std::vector<int64_t> read_seeds(const yaml::Node& node, Reading& reading);
std::string read_backend(const yaml::Node& node, Reading& reading);

/// Puts the content of the file that `published:` names in the name's place, so that results hold
/// it.
void inline_published(yaml::Node& root, const std::filesystem::path& folder,
                      yaml::Problems& problems);

/// Checks the published numbers, which are kept with the resolved experiment.
void read_published(const yaml::Node& node, Reading& reading);

/// Why this release cannot measure so, as a sentence; nothing where it can.
std::optional<std::string> refused_backend(const std::string& backend);
std::optional<std::string> refused_measure(const std::string& measure,
                                           const Experiment& experiment);

/// "group=64, window.recent=0".
std::string settings_text(const std::vector<std::pair<std::string, nlohmann::json>>& settings);

/// The scalar as a user would write it: text without quotes.
std::string plain(const nlohmann::json& value);

}  // namespace kvlab::config
