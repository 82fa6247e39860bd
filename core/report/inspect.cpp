#include "report/inspect.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/error.h"
#include "base/h5.h"
#include "base/names.h"
#include "report/text_width.h"

namespace kvlab::report {
namespace {

using h5::Element;
using Words = std::vector<std::string>;

std::string child_path(const std::string& group, const std::string& name) {
  return group == "/" ? "/" + name : group + "/" + name;
}

std::string type_of(const h5::File& file, const std::string& dataset, const h5::Info& info) {
  if (info.element == Element{Element::Kind::unsigned_integer, 2} &&
      file.has_attribute(dataset, "dtype") &&
      file.attribute_info(dataset, "dtype").element.kind == Element::Kind::text &&
      file.attribute<std::string>(dataset, "dtype") == "bfloat16") {
    return "bfloat16";
  }
  return info.element.name();
}

/// Datasets of a group and, where `deep`, of those below it. Those that cannot be opened become
/// problems.
void add_datasets(const h5::File& file, const std::string& group, const std::string& prefix,
                  bool deep, std::vector<DatasetInfo>* datasets, Words* problems) {
  for (const std::string& name : file.children(group)) {
    const std::string path = child_path(group, name);
    if (file.is_group(path)) {
      if (deep) add_datasets(file, path, prefix + name + "/", deep, datasets, problems);
      continue;
    }
    if (!file.exists(path)) {
      problems->push_back(path + ": a link that leads nowhere");
      continue;
    }
    try {
      const h5::Info info = file.info(path);
      datasets->push_back({prefix + name, type_of(file, path, info), info.shape});
    } catch (const Error& error) {
      problems->emplace_back(error.what());
    }
  }
}

std::string signature_of(const std::vector<DatasetInfo>& datasets) {
  std::string text;
  for (const DatasetInfo& dataset : datasets) {
    text += dataset.name + ' ' + dataset.type;
    for (const int64_t size : dataset.shape) text += fmt::format(" {}", size);
    text += '\n';
  }
  return text;
}

/// The groups within `parent`, like ones together.
void add_groups(const h5::File& file, const std::string& parent, Inspection* inspection) {
  std::map<std::string, size_t> places;
  for (const std::string& name : file.children(parent)) {
    const std::string path = child_path(parent, name);
    if (!file.is_group(path)) continue;
    if (path == "/cells") {
      add_groups(file, path, inspection);
      continue;
    }
    GroupInfo group{{path}, {}};
    add_datasets(file, path, "", /*deep=*/true, &group.datasets, &inspection->problems);
    const auto [place, is_new] =
        places.emplace(signature_of(group.datasets), inspection->groups.size());
    if (is_new) {
      inspection->groups.push_back(std::move(group));
    } else {
      inspection->groups[place->second].groups.push_back(path);
    }
  }
}

template <class T>
std::string list_text(const h5::File& file, const std::string& name) {
  Words words;
  for (const T& value : file.attribute<std::vector<T>>("/", name)) {
    words.push_back(fmt::format("{}", value));
  }
  return join(words);
}

std::string attribute_text(const h5::File& file, const std::string& name) {
  switch (file.attribute_info("/", name).element.kind) {
    case Element::Kind::text:
      return list_text<std::string>(file, name);
    case Element::Kind::real:
      return list_text<double>(file, name);
    case Element::Kind::integer:
    case Element::Kind::unsigned_integer:
      return list_text<int64_t>(file, name);
    case Element::Kind::other:
      break;
  }
  return "(another type)";
}

void count_results(const h5::File& file, Inspection* inspection) {
  if (file.exists("/summary/cell")) {
    inspection->counts.emplace_back("rows", file.info("/summary/cell").count());
  }
  if (!file.exists("/cells")) return;
  std::map<std::string, int64_t> states;
  int64_t cells = 0;
  for (const std::string& id : file.children("/cells")) {
    ++cells;
    ++states[file.attribute_or<std::string>("/cells/" + id, "status", "no status")];
  }
  inspection->counts.emplace_back("cells", cells);
  for (const auto& [state, count] : states) inspection->counts.emplace_back(state, count);
}

void count_layers(const h5::File& file, Inspection* inspection) {
  int64_t layers = 0;
  for (const std::string& name : file.children("/")) layers += name.starts_with("layer_") ? 1 : 0;
  inspection->counts.emplace_back("layers", layers);
}

std::string shape_text(const std::vector<int64_t>& shape) {
  Words sizes;
  for (const int64_t size : shape) sizes.push_back(fmt::format("{}", size));
  return fmt::format("[{}]", join(sizes));
}

std::string datasets_text(const std::vector<DatasetInfo>& datasets) {
  std::map<std::string, Words> by_kind;
  Words kinds;
  for (const DatasetInfo& dataset : datasets) {
    const std::string kind = dataset.type + " " + shape_text(dataset.shape);
    if (by_kind[kind].empty()) kinds.push_back(kind);
    by_kind[kind].push_back(dataset.name);
  }
  std::string text;
  for (const std::string& kind : kinds) {
    text += fmt::format("    {:<28}  {}\n", kind, join(by_kind[kind]));
  }
  return text;
}

std::string heading_of(const GroupInfo& group) {
  if (group.groups.size() == 1) return group.groups.front();
  return fmt::format("{} … {} ({} groups, each:)", group.groups.front(), group.groups.back(),
                     group.groups.size());
}

/// The beginning of a long attribute.
std::string shortened(const std::string& text) {
  constexpr size_t kShown = 160;
  if (text.size() <= kShown) return text;
  size_t end = kShown;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return text.substr(0, end) + " …";
}

}  // namespace

Inspection inspect(const std::filesystem::path& path) {
  const h5::File file = h5::File::open(path);
  Inspection inspection;
  inspection.file = path.string();
  inspection.bytes = std::filesystem::file_size(path);
  for (const std::string& name : file.attribute_names("/")) {
    if (name == "schema") {
      inspection.schema = attribute_text(file, name);
    } else {
      inspection.attributes.emplace_back(name, attribute_text(file, name));
    }
  }
  GroupInfo root{{"/"}, {}};
  add_datasets(file, "/", "", /*deep=*/false, &root.datasets, &inspection.problems);
  if (!root.datasets.empty()) inspection.groups.push_back(std::move(root));
  add_groups(file, "/", &inspection);
  if (inspection.schema.starts_with("kvlab.results/")) count_results(file, &inspection);
  if (inspection.schema.starts_with("kvlab.capture/") ||
      inspection.schema.starts_with("kvlab.rotation/")) {
    count_layers(file, &inspection);
  }
  return inspection;
}

std::string inspection_text(const Inspection& inspection) {
  std::string text = fmt::format("{}: {}, {}\n", inspection.file,
                                 inspection.schema.empty() ? "no schema" : inspection.schema,
                                 counted(static_cast<int64_t>(inspection.bytes), "byte"));
  for (const auto& [name, count] : inspection.counts)
    text += fmt::format("  {}: {}\n", name, count);
  if (!inspection.attributes.empty()) text += "attributes:\n";
  for (const auto& [name, value] : inspection.attributes) {
    text += fmt::format("  {}: {}\n", name, shortened(one_line(value)));
  }
  for (const GroupInfo& group : inspection.groups) {
    text += heading_of(group) + '\n' + datasets_text(group.datasets);
  }
  const std::string problems = counted(std::ssize(inspection.problems), "problem");
  if (inspection.is_verified) {
    // Nothing was looked at, nothing is known.
    text += fmt::format(
        "{}: {} {} checked, {}\n", inspection.checked_values == 0 ? "not verified" : "verified",
        inspection.checked_values,
        inspection.schema.starts_with("kvlab.results/") ? "checksums" : "values", problems);
  } else if (!inspection.problems.empty()) {
    text += problems + "\n";
  }
  for (const std::string& problem : inspection.problems) text += "  " + problem + '\n';
  return text;
}

nlohmann::ordered_json inspection_json(const Inspection& inspection) {
  using nlohmann::ordered_json;
  ordered_json counts = ordered_json::object();
  for (const auto& [name, count] : inspection.counts) counts[name] = count;
  ordered_json attributes = ordered_json::object();
  for (const auto& [name, value] : inspection.attributes) attributes[name] = value;
  ordered_json groups = ordered_json::array();
  for (const GroupInfo& group : inspection.groups) {
    ordered_json datasets = ordered_json::array();
    for (const DatasetInfo& dataset : group.datasets) {
      datasets.push_back(
          {{"name", dataset.name}, {"type", dataset.type}, {"shape", dataset.shape}});
    }
    groups.push_back({{"groups", group.groups}, {"datasets", datasets}});
  }
  ordered_json all = {{"file", inspection.file},   {"schema", inspection.schema},
                      {"bytes", inspection.bytes}, {"counts", counts},
                      {"attributes", attributes},  {"groups", groups}};
  if (inspection.is_verified) all["checked"] = inspection.checked_values;
  if (inspection.is_verified || !inspection.problems.empty()) {
    all["problems"] = inspection.problems;
  }
  return all;
}

}  // namespace kvlab::report
