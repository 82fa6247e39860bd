#include "method/recipe.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "base/yaml.h"
#include "method/schema.h"
#include "method/values.h"
#include "quant/parts.h"
#include "transform/parts.h"

namespace kvlab::method {
namespace {

/// Keys that stand for two.
const std::vector<std::pair<std::string, std::vector<std::string>>>& shorthands() {
  static const std::vector<std::pair<std::string, std::vector<std::string>>> keys = {
      {"group", {"key.codec.group", "value.codec.group"}},
      {"calibrate.clip", {"calibrate.clip_key", "calibrate.clip_value"}},
  };
  return keys;
}

std::vector<std::string> targets(const std::string& key) {
  for (const auto& [name, keys] : shorthands()) {
    if (name == key) return keys;
  }
  return {key};
}

bool quantizes(const Recipe& recipe) {
  return !is_passthrough(recipe.side("key")) || !is_passthrough(recipe.side("value"));
}

bool any_part(const Recipe& recipe, bool (*holds)(const Part&, const Settings& side)) {
  for (const std::string& name : kSides) {
    const Settings side = recipe.side(name);
    if (is_passthrough(side)) continue;
    for (const std::string& family : kFamilies) {
      if (holds(selected(side, family), side)) return true;
    }
  }
  return false;
}

}  // namespace

std::optional<std::string> apply_edit(Recipe& recipe, const std::string& key,
                                      const nlohmann::json& value) {
  for (const std::string& target : targets(key)) {
    const Param* param = find_param(target);
    if (param == nullptr) {
      return fmt::format("unknown key '{}' of a method{}", key, yaml::hint(key, recipe_keys()));
    }
    nlohmann::json checked = value;
    const bool from_file = target.ends_with(".rotate") && value.is_string() &&
                           value.get<std::string>().starts_with(kFilePrefix) &&
                           value.get<std::string>().size() > kFilePrefix.size();
    if (!from_file) {
      if (auto wrong = check_value(*param, key, checked)) return wrong;
    }
    recipe.settings[target] = std::move(checked);
  }
  return std::nullopt;
}

bool is_recipe_key(const std::string& key) { return find_param(targets(key).front()) != nullptr; }

std::vector<std::string> recipe_keys() {
  std::vector<std::string> keys;
  for (const auto& shorthand : shorthands()) keys.push_back(shorthand.first);
  for (const std::string& side : kSides) {
    for (const Param& param : side_params()) keys.push_back(side + "." + param.key);
  }
  for (const std::string& section : kSections) {
    for (const Param& param : section_params(section)) keys.push_back(section + "." + param.key);
  }
  return keys;
}

Recipe on_layer(const Recipe& recipe, int64_t layer) {
  for (const LayerRule& rule : recipe.layers) {
    if (rule.first <= layer && layer <= rule.last) return rule.recipe;
  }
  Recipe plain = recipe;
  plain.layers.clear();
  return plain;
}

bool is_used(const Recipe& recipe, const std::string& key) {
  const std::vector<std::string> keys = targets(key);
  if (keys.size() > 1) {
    return std::any_of(keys.begin(), keys.end(),
                       [&](const std::string& one) { return is_used(recipe, one); });
  }
  for (const std::string& name : kSides) {
    if (key.starts_with(name + ".")) {
      const std::vector<std::string> used = used_keys(recipe.side(name));
      return std::find(used.begin(), used.end(), key.substr(name.size() + 1)) != used.end();
    }
  }
  if (key.starts_with("calibrate.")) return is_learned(recipe);
  if (!quantizes(recipe) && !key.starts_with("evict.")) return false;
  for (const std::string& section : kSections) {
    if (!key.starts_with(section + ".")) continue;
    const std::vector<std::string> used =
        used_in_section(section, below(recipe.settings, section + "."));
    return std::find(used.begin(), used.end(), key.substr(section.size() + 1)) != used.end();
  }
  return true;
}

bool is_passthrough(const Settings& side) { return quant::is_passthrough(below(side, "codec.")); }

bool needs_calibration(const Recipe& recipe) {
  return any_part(recipe, [](const Part& part, const Settings& side) {
    return part.calibrated ||
           (part.family == "codec" && quant::clip_is_calibrated(below(side, "codec.")));
  });
}

bool uses_seed(const Recipe& recipe) {
  return any_part(recipe, [](const Part& part, const Settings&) { return part.uses_seed; });
}

bool is_learned(const Recipe& recipe) {
  return any_part(recipe, [](const Part& part, const Settings&) { return part.learned; });
}

std::optional<std::string> rotation_file(const Recipe& recipe, const std::string& side) {
  const Settings settings = recipe.side(side);
  const std::string rotate = get_text(settings, "rotate");
  if (is_passthrough(settings) || !rotate.starts_with(kFilePrefix)) return std::nullopt;
  return rotate.substr(kFilePrefix.size());
}

int64_t flush_group(const Recipe& recipe) {
  int64_t group = 1;
  for (const std::string& name : kSides) {
    const Settings side = recipe.side(name);
    if (!is_passthrough(side)) group = std::lcm(group, transform::token_group(side));
  }
  return group;
}

std::string effective_flush(const Recipe& recipe) {
  std::string flush = get_text(recipe.settings, "window.flush");
  if (flush == "ring" && flush_group(recipe) > 1) return "block";
  const bool buffered = flush == "full" || flush == "kivi";
  if (buffered && get_int(recipe.settings, "window.recent") == 0) return "block";
  return flush;
}

}  // namespace kvlab::method
