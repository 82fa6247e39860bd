#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "base/names.h"
#include "config/document.h"
#include "config/reader.h"
#include "data/synthetic_params.h"
#include "method/values.h"

namespace kvlab::config {
namespace {

using yaml::Node;

void read_layers(const Node& node, DatasetItem& item, Reading& reading) {
  if (node.is_scalar() && node.value == "all") return;
  if (!node.is_list() || node.items.empty()) {
    yaml::report(reading.problems, node,
                 "'layers' must be all or a list of numbers, found " + yaml::describe(node));
    return;
  }
  for (const Node& entry : node.items) {
    const auto layer = yaml::read_int(entry, "layers", reading.problems, 0);
    if (!layer) continue;
    if (std::find(item.layers.begin(), item.layers.end(), *layer) != item.layers.end()) {
      yaml::report(reading.problems, entry, fmt::format("layer {} is listed twice", *layer));
    }
    item.layers.push_back(*layer);
    item.layer_marks.push_back(mark_of(entry));
  }
}

void read_capture(yaml::Fields& fields, const Node& node, bool with_layers, DatasetItem& item,
                  Reading& reading) {
  if (const Node* path = fields.get("path")) {
    if (const auto text = yaml::read_text(*path, "path", reading.problems)) {
      item.path = resolve_path(*text, reading.folder, *path, reading.problems);
      item.label = std::filesystem::path(*text).stem().string();
    }
  } else {
    yaml::report(reading.problems, node, "a capture needs a 'path'");
  }
  if (const Node* layers = with_layers ? fields.get("layers") : nullptr) {
    read_layers(*layers, item, reading);
  }
  // What lies behind a token has no part in it, so the first tokens are a shorter capture; a later
  // stretch is none, but serves for calibration.
  if (const Node* tokens = fields.get("tokens")) {
    item.stretch.count = yaml::read_int(*tokens, "tokens", reading.problems, 1).value_or(0);
  }
  if (const Node* from = with_layers ? nullptr : fields.get("from")) {
    item.stretch.first = yaml::read_int(*from, "from", reading.problems, 0).value_or(0);
  }
  if (const Node* allow = fields.get("allow_nonfinite")) {
    item.allow_nonfinite =
        yaml::read_bool(*allow, "allow_nonfinite", reading.problems).value_or(false);
  }
}

void read_synthetic(yaml::Fields& fields, const Node& node, DatasetItem& item, Reading& reading) {
  for (const Param& param : data::synthetic_params()) {
    nlohmann::json value = param.fallback;
    if (const Node* given = fields.get(param.key)) {
      nlohmann::json written = yaml::to_json(*given);
      if (auto wrong = method::check_value(param, param.key, written)) {
        yaml::report(reading.problems, *given, *wrong);
      } else {
        value = std::move(written);
      }
    }
    item.params[param.key] = std::move(value);
  }
  item.label = reading.axes.contains("pattern") ? "synthetic" : get_text(item.params, "pattern");
  if (auto refused = data::refuse_synthetic(item.params)) {
    // The sentence begins with the key that it is about.
    const Node* at = node.find(refused->substr(0, refused->find(':')));
    yaml::report(reading.problems, at != nullptr ? *at : node, *refused);
  }
}

/// A calibration item differs from a dataset item: it takes the layer of the cell and has no
/// calibration of its own.
DatasetItem read_item(const Node& node, const std::string& what, bool is_dataset,
                      Reading& reading) {
  DatasetItem item;
  item.mark = mark_of(node);
  yaml::Fields fields(node, what, reading.problems);
  if (!node.is_map()) return item;
  std::vector<std::string> sources = {"synthetic", "capture"};
  if (is_dataset) sources.emplace_back("model");
  const Node* source = fields.get("source");
  if (source == nullptr) {
    yaml::report(reading.problems, node,
                 fmt::format("{} needs a 'source': one of {}", what, join(sources)));
    return item;
  }
  item.source = yaml::read_text(*source, "source", reading.problems).value_or("");
  if (item.source == "capture") {
    read_capture(fields, node, is_dataset, item, reading);
  } else if (item.source == "synthetic") {
    read_synthetic(fields, node, item, reading);
  } else if (item.source == "model" && is_dataset) {
    read_model(fields, node, item, reading);
  } else {
    if (!item.source.empty()) {
      yaml::report(reading.problems, *source,
                   fmt::format("'source' must be one of {}, found '{}'{}", join(sources),
                               item.source, did_you_mean(item.source, sources)));
    }
    return item;
  }
  if (const Node* label = fields.get("label")) {
    item.label = read_line(*label, "label", reading);
  }
  if (const Node* text = is_dataset ? fields.get("text") : nullptr) {
    item.text = read_line(*text, "text", reading);
  }
  if (const Node* calibration = is_dataset ? fields.get("calibration") : nullptr) {
    item.calibration.push_back(
        read_calibration(*calibration, "the dataset's calibration", reading));
  }
  fields.finish();
  return item;
}

Settings told_apart_by(const DatasetItem& item) {
  if (!item.model) return item.params;
  return {{"device", item.model->device}, {"dtype", kvlab::name_of(item.model->dtype)}};
}

/// Parameters in which the items differ, as a suffix for the label of each.
std::vector<std::string> differing_params(const std::vector<const DatasetItem*>& items,
                                          const std::set<std::string>& axes) {
  std::vector<std::string> suffixes(items.size());
  std::vector<std::string> keys;
  for (const Param& param : data::synthetic_params()) keys.push_back(param.key);
  for (const char* key : {"dtype", "device"}) add_once(&keys, key);  // of models
  for (const std::string& key : keys) {
    if (axes.contains(key)) continue;
    std::set<std::string> values;
    for (const DatasetItem* item : items) {
      const Settings settings = told_apart_by(*item);
      if (settings.contains(key)) values.insert(settings.at(key).dump());
    }
    if (values.size() < 2) continue;
    for (size_t i = 0; i < items.size(); ++i) {
      suffixes[i] += (suffixes[i].empty() ? " " : ", ") +
                     settings_text({{key, told_apart_by(*items[i]).at(key)}});
    }
  }
  return suffixes;
}

bool holds_same(const std::vector<DatasetItem>& a, const std::vector<DatasetItem>& b);

/// Whether the items give the same samples, calibrated alike.
bool holds_same(const DatasetItem& a, const DatasetItem& b) {
  const auto part_of = [](const DatasetItem& item) {
    const ModelRun run = item.model.value_or(ModelRun{});
    return std::tuple(run.tokens, run.needles, run.task, run.passage, run.length, run.device,
                      run.dtype);
  };
  return a.source == b.source && a.params == b.params && a.path == b.path && a.layers == b.layers &&
         a.stretch == b.stretch && a.allow_nonfinite == b.allow_nonfinite &&
         part_of(a) == part_of(b) && holds_same(a.calibration, b.calibration);
}

bool holds_same(const std::vector<DatasetItem>& a, const std::vector<DatasetItem>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const DatasetItem& x, const DatasetItem& y) { return holds_same(x, y); });
}

/// An item that an earlier one repeats under the same name is a slip of the hand.
void refuse_repeats(const std::vector<DatasetItem>& items, Reading& reading) {
  std::set<std::tuple<std::string, int, int>> told;  // items have a part for each passage
  for (size_t i = 0; i < items.size(); ++i) {
    const DatasetItem& item = items[i];
    const bool repeats = std::any_of(items.begin(), items.begin() + static_cast<ptrdiff_t>(i),
                                     [&](const DatasetItem& other) {
                                       return other.label == item.label && holds_same(other, item);
                                     });
    const Mark& at = item.mark;
    if (!repeats || item.label.empty() || !told.emplace(at.file, at.line, at.column).second) {
      continue;
    }
    reading.problems.push_back(
        {at.file, at.line, at.column,
         fmt::format("dataset '{}' is listed twice; give one of them another 'label'",
                     item.label)});
  }
}

std::map<std::string, std::vector<DatasetItem*>> by_label(std::vector<DatasetItem>& items) {
  std::map<std::string, std::vector<DatasetItem*>> groups;
  for (DatasetItem& item : items) groups[item.label].push_back(&item);
  return groups;
}

/// Tables show the label alone, so two items must not share one: first by parameters or folder,
/// then by number.
void make_labels_unique(std::vector<DatasetItem>& items, const std::set<std::string>& axes) {
  for (auto& [label, group] : by_label(items)) {
    if (group.size() < 2) continue;
    const auto suffixes = differing_params({group.begin(), group.end()}, axes);
    for (size_t i = 0; i < group.size(); ++i) {
      const std::string folder = group[i]->path.parent_path().filename().string();
      const bool by_folder = suffixes[i].empty() && !folder.empty();
      group[i]->label = by_folder ? folder + "/" + label : label + suffixes[i];
    }
  }
  for (auto& [label, group] : by_label(items)) {
    for (size_t i = 1; i < group.size(); ++i) group[i]->label += fmt::format(" #{}", i + 1);
  }
}

}  // namespace

std::vector<DatasetItem> read_datasets(const Node& node, Reading& reading) {
  std::vector<DatasetItem> items;
  const auto read = [&](const Node& item, const char* what) {
    for (DatasetItem& one : parts_of(read_item(item, what, true, reading), item, reading)) {
      items.push_back(std::move(one));
    }
  };
  if (node.is_list()) {
    for (const Node& item : node.items) read(item, "a dataset");
    if (node.items.empty()) yaml::report(reading.problems, node, "'dataset' is an empty list");
  } else {
    read(node, "the dataset");
  }
  check_sources(items, reading);
  refuse_repeats(items, reading);
  make_labels_unique(items, reading.axes);
  return items;
}

DatasetItem read_calibration(const Node& node, const std::string& what, Reading& reading) {
  return read_item(node, what, false, reading);
}

}  // namespace kvlab::config
