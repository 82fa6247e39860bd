#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "config/document.h"
#include "config/reader.h"
#include "method/recipe_yaml.h"
#include "method/schema.h"

namespace kvlab::config {
namespace {

using yaml::Node;

void flatten(const Node& node, const std::string& prefix,
             std::vector<std::pair<std::string, nlohmann::json>>& settings) {
  for (const yaml::Member& member : node.members) {
    if (member.value.is_map()) {
      flatten(member.value, prefix + member.key + ".", settings);
    } else {
      settings.emplace_back(prefix + member.key, yaml::to_json(member.value));
    }
  }
}

using Edits = std::vector<std::pair<std::string, nlohmann::json>>;

/// Takes out edits of which nothing is left, since later ones of the same set do set all that they
/// set (`key.codec.group` before `group`), with a note for each.
std::vector<std::string> drop_overridden(Edits& edits) {
  const auto settings_of = [](const auto& edit) {
    method::Recipe alone;
    method::apply_edit(alone, edit.first, edit.second);  // a wrong value is told elsewhere
    return alone.settings;
  };
  std::vector<std::string> notes;
  Settings later;
  for (size_t i = edits.size(); i-- > 0;) {
    const Settings own = settings_of(edits[i]);
    const bool is_lost = !own.empty() && std::all_of(own.begin(), own.end(), [&](const auto& one) {
      return later.contains(one.first);
    });
    later.insert(own.begin(), own.end());
    if (!is_lost) continue;
    notes.insert(notes.begin(), fmt::format("set: {} has no effect, a later key sets the same",
                                            settings_text({edits[i]})));
    edits.erase(edits.begin() + static_cast<ptrdiff_t>(i));
  }
  return notes;
}

class MethodReader {
 public:
  explicit MethodReader(Reading& reading) : reading_(reading) {}

  std::vector<MethodUse> read(const Node& list) {
    if (!list.is_list() || list.items.empty()) {
      yaml::report(reading_.problems, list,
                   "'methods' must be a list of ids or recipes, found " + yaml::describe(list));
      return {};
    }
    for (const Node& node : list.items) add(node);
    return std::move(uses_);
  }

 private:
  void add(const Node& node) {
    const size_t before = reading_.problems.size();
    MethodUse use;
    if (node.is_map() && node.find("use") == nullptr) {
      use = inline_recipe(node);
    } else if (node.is_map()) {
      use = edited(node);
    } else if (const auto id = yaml::read_text(node, "methods", reading_.problems)) {
      use = {*id, find(*id, node)};
    }
    use.mark = mark_of(node);
    resolve_files(use.recipe, node);
    if (reading_.problems.size() > before) return;
    for (const MethodUse& other : uses_) {
      if (other.label != use.label) continue;
      yaml::report(
          reading_.problems, node,
          fmt::format("method '{}' is listed twice; give one of them another 'label'", use.label));
      return;
    }
    uses_.push_back(std::move(use));
  }

  /// A recipe of this file, else a built-in one.
  const method::Recipe& find(const std::string& id, const Node& node) {
    for (const method::Recipe& own : own_) {
      if (own.id == id) return own;
    }
    if (auto wrong = method::wrong_id(id)) {
      yaml::report(reading_.problems, node, *wrong);
      return nothing_;
    }
    return method::preset(id);
  }

  MethodUse inline_recipe(const Node& node) {
    MethodUse use;
    use.recipe = method::read_recipe(node, {"label"}, &method::preset, reading_.problems);
    use.label = use.recipe.id;
    if (const Node* id = node.find("id"); id != nullptr && !method::wrong_id(use.recipe.id)) {
      yaml::report(reading_.problems, *id,
                   fmt::format("'{0}' is a built-in method: choose another id, or write "
                               "{{use: {0}, set: {{…}}}}",
                               use.recipe.id));
    }
    if (const Node* label = node.find("label")) {
      use.label = read_line(*label, "label", reading_);
    }
    if (const Node* id = node.find("id"); id != nullptr && id->value.is_string()) {
      read_line(*id, "id", reading_);
    }
    own_.push_back(use.recipe);
    return use;
  }

  MethodUse edited(const Node& node) {
    MethodUse use;
    yaml::Fields fields(node, "a method with 'use'", reading_.problems);
    const Node& id_node = *fields.get("use");
    Edits edits;
    if (const auto id = yaml::read_text(id_node, "use", reading_.problems)) {
      use.recipe = find(*id, id_node);
    }
    if (const Node* set = fields.get("set")) {
      if (use.recipe.settings.empty()) use.recipe.settings = method::default_settings();
      method::read_edits(*set, use.recipe, reading_.problems);
      flatten(*set, "", edits);
      use.notes = drop_overridden(edits);
    }
    use.label = use.recipe.id;
    if (const Node* layers = fields.get("layers")) {
      method::read_layer_rules(*layers, use.recipe, &method::preset, reading_.problems);
      edits.emplace_back("layers", yaml::to_json(*layers));
    }
    if (!edits.empty()) use.label += " (" + settings_text(edits) + ")";
    if (const Node* label = fields.get("label")) {
      use.label = read_line(*label, "label", reading_);
    }
    fields.finish();
    return use;
  }

  void resolve_files(method::Recipe& recipe, const Node& node) {
    for (auto& [key, value] : recipe.settings) {
      const bool names_file = value.is_string() && key.ends_with(".rotate") &&
                              value.get<std::string>().starts_with(method::kFilePrefix);
      if (!names_file) continue;
      const std::string path = value.get<std::string>().substr(method::kFilePrefix.size());
      yaml::Problems problems;
      value = method::kFilePrefix + resolve_path(path, reading_.folder, node, problems).string();
      for (Problem& problem : problems) {
        problem.message = key + ": " + problem.message;
        reading_.problems.push_back(std::move(problem));
      }
    }
    for (method::LayerRule& rule : recipe.layers) resolve_files(rule.recipe, node);
  }

  Reading& reading_;
  std::vector<MethodUse> uses_;
  std::vector<method::Recipe> own_;
  const method::Recipe nothing_ = {};
};

}  // namespace

std::vector<MethodUse> read_methods(const Node& node, Reading& reading) {
  return MethodReader(reading).read(node);
}

}  // namespace kvlab::config
