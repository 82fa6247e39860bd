#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "base/names.h"
#include "base/yaml.h"
#include "method/preset_texts.h"
#include "method/recipe.h"
#include "method/recipe_yaml.h"

namespace kvlab::method {
namespace {

struct Preset {
  Recipe recipe;
  int64_t position = 0;                  // in lists
  std::vector<std::string> also_called;  // names that a reader may mean it by, not unique
};

[[noreturn]] const Recipe& no_method(const std::string&) {
  throw Error("a built-in method does not use another one");
}

Preset read_preset(const PresetText& text, yaml::Problems& problems) {
  const std::string file = text.id + ".yaml";
  const yaml::Node node = yaml::parse(text.yaml, file, problems);
  Preset preset;
  preset.recipe = read_recipe(node, {"position", "also_called"}, no_method, problems);
  if (const yaml::Node* position = node.find("position")) {
    preset.position = yaml::read_int(*position, "position", problems).value_or(0);
  }
  if (const yaml::Node* names = node.find("also_called")) {
    for (const yaml::Node& name : names->items) {
      preset.also_called.push_back(yaml::read_text(name, "also_called", problems).value_or(""));
    }
  }
  if (preset.recipe.id != text.id) {
    yaml::report(problems, node, fmt::format("the id is not the file's name, '{}'", text.id));
  }
  return preset;
}

const std::vector<Preset>& presets() {
  static const std::vector<Preset> all = [] {
    std::vector<Preset> result;
    yaml::Problems problems;
    for (const PresetText& text : preset_texts()) result.push_back(read_preset(text, problems));
    if (!problems.empty()) throw ConfigError(problems);
    std::stable_sort(result.begin(), result.end(),
                     [](const Preset& a, const Preset& b) { return a.position < b.position; });
    return result;
  }();
  return all;
}

std::string lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

std::string wrong_name(const std::string& id) {
  std::vector<std::string> meant;
  for (const Preset& preset : presets()) {
    const auto& names = preset.also_called;
    if (std::find(names.begin(), names.end(), lower(id)) == names.end()) continue;
    meant.push_back(fmt::format("'{}' ({}, {})", preset.recipe.id, preset.recipe.title,
                                preset.recipe.source.paper));
  }
  if (meant.empty()) {
    return fmt::format("unknown method '{}'{}", id, yaml::hint(id, method_ids()));
  }
  return fmt::format("method '{}' is ambiguous, papers differ only by case: write {}", id,
                     join(meant, " or "));
}

const Preset* find(const std::string& id) {
  for (const Preset& preset : presets()) {
    if (preset.recipe.id == id) return &preset;
  }
  return nullptr;
}

}  // namespace

std::vector<std::string> method_ids() {
  std::vector<std::string> ids;
  for (const Preset& preset : presets()) ids.push_back(preset.recipe.id);
  return ids;
}

const Recipe& preset(const std::string& id) {
  const Preset* found = find(id);
  if (found == nullptr) throw Error(wrong_name(id));
  return found->recipe;
}

std::optional<std::string> wrong_id(const std::string& id) {
  if (find(id) != nullptr) return std::nullopt;
  return wrong_name(id);
}

}  // namespace kvlab::method
