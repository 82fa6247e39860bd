#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/part.h"

namespace kvlab::method {

/// Where a method comes from and where its sources disagree; shown by `kvlab show`.
struct Source {
  std::string paper;
  std::string code;
  std::string origin;                // "from the description" where there is no published code
  std::vector<std::string> differs;  // a sentence each: paper against code, preset against either
  std::optional<double> published_bits;
};

struct LayerRule;

/// A method as data (contract section 4.1): every key filled, in flat form.
/// Keys: "key.*" and "value.*" (a side), "window.*", "protect.*", "evict.*", "calibrate.*".
struct Recipe {
  std::string id;
  std::string title;
  Source source;
  Settings settings;
  std::vector<LayerRule> layers;

  /// One side's settings, keys relative to the side ("rotate", "codec.bits"). `side` is "key" or
  /// "value".
  Settings side(const std::string& side) const { return below(settings, side + "."); }
};

/// A recipe that holds on some layers only (`layers: {"0-1": {...}}`), bounds included.
struct LayerRule {
  int64_t first = 0;
  int64_t last = 0;
  Recipe recipe;
};

/// Ids of the built-in methods, in the order of contract section 4.5.
std::vector<std::string> method_ids();

/// The resolved built-in method. Throws Error with the nearest names where there is none; a name
/// that several methods answer to (plain `oscar`) is refused with all of them.
const Recipe& preset(const std::string& id);

/// What is wrong with the name of a built-in method, as a sentence; nothing where it names one.
std::optional<std::string> wrong_id(const std::string& id);

/// A method from YAML text. Adds mistakes to `problems`. The value side takes every key it does not
/// name from the key side, except centre and token scale.
Recipe parse_recipe(const std::string& yaml, const std::string& file,
                    std::vector<Problem>& problems);

/// Sets one key. "group" sets both codec groups and nothing else, "calibrate.clip" both clip ratios
/// of a learned part. Layer rules keep their own recipes. Returns a message where key or value is
/// wrong (unknown key with the nearest valid one, wrong type, out of range), nothing where it was
/// set.
std::optional<std::string> apply_edit(Recipe& recipe, const std::string& key,
                                      const nlohmann::json& value);

/// Whether `key` is one that apply_edit knows.
bool is_recipe_key(const std::string& key);
std::vector<std::string> recipe_keys();

/// The recipe that holds on `layer`, without layer rules.
Recipe on_layer(const Recipe& recipe, int64_t layer);

/// Whether the setting means anything in this recipe; settings that do not are dropped from
/// `canonical`.
bool is_used(const Recipe& recipe, const std::string& key);

/// {"key": {...}, "value": {...}, "window": {...}} with used settings only, groups as used at this
/// head dimension and windows by their plainest name; "protect" and "evict" where their kind is not
/// none; "calibrate" where a side is learned. What a cell's identity is made of.
nlohmann::json canonical(const Recipe& recipe, int64_t head_dim);

/// A sentence why the recipe cannot be had on data of this shape; nothing where it can (window
/// rules, groups, head dimension, parts' own refusals).
std::optional<std::string> unsupported(const Recipe& recipe, int64_t head_dim);

/// What a reader of the row should know: where the recipe does not do what it seems to say ("key:
/// the per-token group 128 became the head dimension 64", "key.bit_reversal: no effect by algebra:
/// …").
std::vector<std::string> notes(const Recipe& recipe, int64_t head_dim);

/// Reason why `key` changes no result of this recipe although it is used; nothing where it does.
std::optional<std::string> no_effect(const Recipe& recipe, const std::string& key,
                                     int64_t head_dim);

/// The settings that take effect as something else than was asked for ("key.codec.group": 128 where
/// the head has 64 channels), as asked for. `canonical` has what takes effect.
Settings requested(const Recipe& recipe, int64_t head_dim);

/// Whether a side (a recipe's settings below "key." or "value.") keeps its numbers as they are.
bool is_passthrough(const Settings& side);

/// Whether some part needs a calibration sample, or draws from the seed.
bool needs_calibration(const Recipe& recipe);
bool uses_seed(const Recipe& recipe);

/// Whether some side's rotation is learned, so that `calibrate` means something.
bool is_learned(const Recipe& recipe);

/// The path of a side's `rotate: file:PATH`, nothing where the side has none.
std::optional<std::string> rotation_file(const Recipe& recipe, const std::string& side);

/// Tokens that are quantized together: the least common multiple of the per-channel groups of both
/// sides, else 1.
int64_t flush_group(const Recipe& recipe);

/// The flush rule as it works: `full` and `kivi` with recent 0, and `ring` where a side is per
/// channel, are `block`.
std::string effective_flush(const Recipe& recipe);

}  // namespace kvlab::method
