// What a recipe comes to on data of a given head size: its canonical form, what it cannot do, what
// a reader must know.
#include <fmt/format.h>

#include <algorithm>

#include "method/recipe.h"
#include "method/schema.h"
#include "quant/parts.h"

namespace kvlab::method {
namespace {

bool is_per_token(const Settings& side) {
  return !is_passthrough(side) && get_text(side, "codec.axis") == "token";
}

/// Whether the quantizer inside a learned side's loss has groups along the channels.
bool learns_per_token(const Recipe& recipe) {
  return is_learned(recipe) &&
         (is_per_token(recipe.side("key")) || is_per_token(recipe.side("value")));
}

/// Stages that are not there: younger than the first cells, whose identity must stay what it was.
bool is_absent_stage(const std::string& key, const nlohmann::json& value) {
  for (const char* stage : {"space", "reorder", "basis", "rotate_heads", "objective"}) {
    if (key != stage) continue;
    return std::any_of(side_params().begin(), side_params().end(), [&](const Param& param) {
      return param.key == key && param.fallback == value;
    });
  }
  return false;
}

/// Every setting of a side that means something, with the value that takes effect.
void add_side(const Settings& side, const std::string& name, int64_t head_dim, Settings& result) {
  const Settings codec = below(side, "codec.");
  for (const std::string& key : used_keys(side)) {
    nlohmann::json value = side.at(key);
    const Param* param = declared(side, key);
    if (param != nullptr && param->quiet && value == param->fallback) continue;
    if (is_absent_stage(key, value)) continue;
    if (key == "codec.group") value = quant::effective_group(codec, head_dim);
    if (key == "codec.clip" && !quant::clip_ratio(codec)) value = "none";
    result[name + "." + key] = std::move(value);
  }
}

/// The same of the whole recipe.
Settings effective(const Recipe& recipe, int64_t head_dim) {
  Settings result;
  for (const std::string& name : kSides) add_side(recipe.side(name), name, head_dim, result);
  for (const std::string& section : kSections) {
    if (section == "calibrate") continue;
    // A pool or an eviction that is off is not there.
    const auto kind = recipe.settings.find(section + ".kind");
    if (kind != recipe.settings.end() && kind->second == "none") continue;
    for (const Param& param : section_params(section)) {
      const std::string key = section + "." + param.key;
      if (is_used(recipe, key)) result[key] = recipe.settings.at(key);
    }
  }
  if (is_used(recipe, "window.flush")) result["window.flush"] = effective_flush(recipe);
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
  if (flush == "dynamic") {
    const int64_t least = get_int(recipe.settings, "window.min");
    const int64_t most = get_int(recipe.settings, "window.max");
    if (least <= most) return std::nullopt;
    return fmt::format("window.min {} is more than window.max {}", least, most);
  }
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
  if (flush == "kivi" && !is_passthrough(value) && get_int(value, "mix_tokens") > 1) {
    return "window.flush kivi quantizes values one by one: value.mix_tokens must be 0";
  }
  return std::nullopt;
}

/// Stages that know of each other only in some orders.
std::optional<std::string> refused_stages(const Settings& side) {
  const std::string rotate = get_text(side, "rotate");
  const bool free = rotate == "none" || rotate == "hadamard" || rotate == "signed_hadamard" ||
                    rotate == "random_orthogonal";
  const bool mixes = rotate.ends_with("hadamard") && free && get_int(side, "rotate_heads") > 1;
  const bool basis = get_text(side, "basis") != "none";
  const bool reorder = get_text(side, "reorder") != "none";
  const bool before_rope = get_text(side, "space") == "pre_rope";
  if (free && !(basis && (mixes || reorder || before_rope))) return std::nullopt;
  if (basis && before_rope)
    return "basis looks at queries, which have RoPE: space pre_rope has none";
  if (basis && (mixes || reorder)) return "basis is within a head: no reorder, and rotate_heads 1";
  if (free || !(basis || reorder || before_rope)) return std::nullopt;
  return fmt::format(
      "rotate {} is made for captured channels: with {} take none, hadamard, signed_hadamard or "
      "random_orthogonal",
      rotate,
      basis     ? "basis"
      : reorder ? "reorder"
                : "space pre_rope");
}

/// Mixed tokens are one thing: what looks at single ones cannot be had.
std::optional<std::string> refused_mixing(const Recipe& recipe, const std::string& name) {
  const Settings side = recipe.side(name);
  const int64_t tokens = get_int(side, "mix_tokens");
  if (tokens == 0) return std::nullopt;
  if ((tokens & (tokens - 1)) != 0) {
    return fmt::format("mix_tokens {} is no power of two", tokens);
  }
  const Settings codec = below(side, "codec.");
  if (quant::learns_codebook(codec) || quant::clip_is_calibrated(codec)) {
    return "mix_tokens mixes blocks of the cache: a codec that is calibrated has none";
  }
  if (get_text(recipe.settings, "protect.kind") != "none") {
    return "mix_tokens and protect do not go together: a mixed token cannot be told apart";
  }
  return std::nullopt;
}

/// A token can leave the cache only where no other one shares its parameters, and only once it has
/// left the window.
std::optional<std::string> refused_eviction(const Recipe& recipe) {
  if (get_text(recipe.settings, "evict.kind") == "none") return std::nullopt;
  if (flush_group(recipe) > 1) {
    return "evict needs axis token on both sides: a token that leaves a group of tokens frees none "
           "of its bits";
  }
  if (get_text(recipe.settings, "protect.kind") != "none")
    return "evict and protect do not go together";
  if (effective_flush(recipe) != "block") {
    return fmt::format("evict needs window.flush block, not {}", effective_flush(recipe));
  }
  for (const char* part : {"sink", "recent"}) {
    const std::string window = std::string("window.") + part;
    const std::string evict = std::string("evict.") + part;
    const int64_t held = get_int(recipe.settings, window);
    const int64_t kept = get_int(recipe.settings, evict);
    if (held > kept) {
      return fmt::format("{} {} is more than {} {}: a token in the window cannot be dropped",
                         window, held, evict, kept);
    }
  }
  if (get_int(recipe.settings, "evict.recent") < 1) return "evict.recent must be at least 1";
  return std::nullopt;
}

std::optional<std::string> refused_protection(const Recipe& recipe) {
  if (get_text(recipe.settings, "protect.kind") == "none") return std::nullopt;
  for (const std::string& name : kSides) {
    if (!is_passthrough(recipe.side(name))) continue;
    return "protect needs both sides quantized, " + name + " is passthrough";
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
    if (auto reason = refused_stages(side)) return name + ": " + *reason;
    if (auto reason = refused_mixing(recipe, name)) return name + ": " + *reason;
  }
  if (learns_per_token(recipe)) {
    const int64_t group = std::min(get_int(recipe.settings, "calibrate.group"), head_dim);
    if (head_dim % group != 0) {
      return fmt::format("calibrate: a group of {} channels does not divide the head dimension {}",
                         group, head_dim);
    }
  }
  if (get_text(recipe.side("value"), "space") != "post_rope") {
    return "value: space pre_rope is for keys, RoPE does not turn values";
  }
  if (get_text(recipe.side("value"), "basis") == "query_pca") {
    return "value: basis query_pca is for keys, queries do not meet values";
  }
  if (auto reason = refused_eviction(recipe)) return reason;
  if (auto reason = refused_protection(recipe)) return reason;
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
