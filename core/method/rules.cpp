// What a recipe comes to on data of a given head size: its canonical form, what it cannot do, what
// a reader must know.
#include <fmt/format.h>

#include <algorithm>

#include "method/recipe.h"
#include "method/schema.h"
#include "quant/parts.h"

namespace kvlab::method {
namespace {

bool is_passthrough(const Settings& side) { return quant::is_passthrough(below(side, "codec.")); }

bool is_per_token(const Settings& side) {
  return !is_passthrough(side) && get_text(side, "codec.axis") == "token";
}

/// Whether the quantizer inside a learned side's loss has groups along the channels.
bool learns_per_token(const Recipe& recipe) {
  return is_learned(recipe) &&
         (is_per_token(recipe.side("key")) || is_per_token(recipe.side("value")));
}

/// Every setting of a side that means something, with the value that takes effect.
void add_side(const Settings& side, const std::string& name, int64_t head_dim, Settings& result) {
  const Settings codec = below(side, "codec.");
  for (const std::string& key : used_keys(side)) {
    nlohmann::json value = side.at(key);
    const Param* param = declared(side, key);
    if (param != nullptr && param->quiet && value == param->fallback) continue;
    if (key == "codec.group") value = quant::effective_group(codec, head_dim);
    if (key == "codec.clip" && !quant::clip_ratio(codec)) value = "none";
    result[name + "." + key] = std::move(value);
  }
}

/// The same of the whole recipe.
Settings effective(const Recipe& recipe, int64_t head_dim) {
  Settings result;
  for (const std::string& name : kSides) add_side(recipe.side(name), name, head_dim, result);
  if (is_used(recipe, "window.flush")) {
    for (const auto& [key, value] : below(recipe.settings, "window.")) {
      result["window." + key] = value;
    }
    result["window.flush"] = effective_flush(recipe);
  }
  if (is_learned(recipe)) {
    for (const auto& [key, value] : below(recipe.settings, "calibrate.")) {
      result["calibrate." + key] = value;
    }
    const int64_t group = get_int(recipe.settings, "calibrate.group");
    if (learns_per_token(recipe)) result["calibrate.group"] = std::min(group, head_dim);
  }
  return result;
}

void insert_nested(nlohmann::json& map, const std::string& key, nlohmann::json value) {
  const size_t dot = key.find('.');
  if (dot == std::string::npos) {
    map[key] = std::move(value);
  } else {
    insert_nested(map[key.substr(0, dot)], key.substr(dot + 1), std::move(value));
  }
}

std::optional<std::string> refused_window(const Recipe& recipe) {
  const std::string flush = effective_flush(recipe);
  if (flush != "full" && flush != "kivi") return std::nullopt;
  const int64_t recent = get_int(recipe.settings, "window.recent");
  const int64_t group = flush_group(recipe);
  if (recent % group != 0) {
    return fmt::format(
        "window.recent {} is no multiple of the group of {} tokens, as window.flush {} needs",
        recent, group, flush);
  }
  const Settings value = recipe.side("value");
  if (flush == "kivi" && !is_passthrough(value) && !is_per_token(value)) {
    return "window.flush kivi needs values on axis token or passthrough, not axis channel";
  }
  return std::nullopt;
}

}  // namespace

nlohmann::json canonical(const Recipe& recipe, int64_t head_dim) {
  nlohmann::json result = {{"key", nlohmann::json::object()},
                           {"value", nlohmann::json::object()},
                           {"window", nlohmann::json::object()}};
  for (const auto& [key, value] : effective(recipe, head_dim)) insert_nested(result, key, value);
  return result;
}

Settings requested(const Recipe& recipe, int64_t head_dim) {
  Settings result;
  for (const auto& [key, value] : effective(recipe, head_dim)) {
    const nlohmann::json& asked = recipe.settings.at(key);
    if (asked != value) result[key] = asked;
  }
  return result;
}

std::optional<std::string> unsupported(const Recipe& recipe, int64_t head_dim) {
  for (const std::string& name : kSides) {
    const Settings side = recipe.side(name);
    if (is_passthrough(side)) continue;
    for (const std::string& family : kFamilies) {
      const Part& part = selected(side, family);
      if (!part.refuse) continue;
      if (auto reason = part.refuse(side, head_dim)) return name + ": " + *reason;
    }
  }
  if (learns_per_token(recipe)) {
    const int64_t group = std::min(get_int(recipe.settings, "calibrate.group"), head_dim);
    if (head_dim % group != 0) {
      return fmt::format("calibrate: a group of {} channels does not divide the head dimension {}",
                         group, head_dim);
    }
  }
  return refused_window(recipe);
}

std::vector<std::string> notes(const Recipe& recipe, int64_t head_dim) {
  std::vector<std::string> result;
  for (const std::string& name : kSides) {
    const Settings side = recipe.side(name);
    if (is_per_token(side) && quant::has_param(below(side, "codec."), "group") &&
        get_int(side, "codec.group") > head_dim) {
      result.push_back(fmt::format("{}: the per-token group {} became the head dimension {}", name,
                                   get_int(side, "codec.group"), head_dim));
    }
    for (const Param& param : side_params()) {
      // A default that changes nothing surprises nobody; a choice that changes nothing does.
      if (side.at(param.key) == param.fallback) continue;
      const std::string key = name + "." + param.key;
      if (auto reason = no_effect(recipe, key, head_dim)) result.push_back(key + ": " + *reason);
    }
  }
  const std::string flush = get_text(recipe.settings, "window.flush");
  if (is_used(recipe, "window.flush") && flush != effective_flush(recipe)) {
    result.push_back(fmt::format("window.flush {} is block here ({})", flush,
                                 flush == "ring" ? "a side is per channel" : "window.recent is 0"));
  }
  return result;
}

std::optional<std::string> no_effect(const Recipe& recipe, const std::string& key,
                                     int64_t head_dim) {
  if (!is_used(recipe, key)) return std::nullopt;
  for (const std::string& name : kSides) {
    if (!key.starts_with(name + ".")) continue;
    const Settings side = recipe.side(name);
    const Param* param = declared(side, key.substr(name.size() + 1));
    if (param != nullptr && param->no_effect) return param->no_effect(name, side, head_dim);
  }
  return std::nullopt;
}

}  // namespace kvlab::method
