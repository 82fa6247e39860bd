#include "method/recipe_yaml.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "base/names.h"
#include "method/schema.h"

namespace kvlab::method {
namespace {

using yaml::Node;
using yaml::Problems;

/// Words of contract section 4.1 that this release has no part for.
bool is_reserved(const std::string& key) {
  static const std::vector<std::string> words = {"boost", "sparse"};
  return std::find(words.begin(), words.end(), key) != words.end();
}

/// The whole keys below `prefix`, cut to what follows it up to the next dot.
std::vector<std::string> words_below(const std::string& prefix) {
  std::vector<std::string> words;
  for (const std::string& key : recipe_keys()) {
    if (!key.starts_with(prefix)) continue;
    const std::string rest = key.substr(prefix.size());
    add_once(&words, rest.substr(0, rest.find('.')));
  }
  return words;
}

/// Where a misplaced key belongs: the whole key that ends in this word on the same side.
std::string rightful_place(const std::string& owner, const std::string& word) {
  for (const std::string& key : recipe_keys()) {
    if (key.starts_with(owner) && key.ends_with("." + word)) return key;
  }
  return {};
}

std::string unknown_key(const std::string& prefix, const std::string& word) {
  const std::string what = prefix.substr(0, prefix.size() - 1);
  if (is_reserved(word)) {
    return fmt::format("key '{}' is reserved for a part that this release does not have", word);
  }
  const std::string owner = prefix.substr(0, prefix.find('.') + 1);
  const std::string place = rightful_place(owner, word);
  if (!place.empty())
    return fmt::format("unknown key '{}' in {} (it belongs at {})", word, what, place);
  return fmt::format("unknown key '{}' in {}{}", word, what, yaml::hint(word, words_below(prefix)));
}

/// Sets every scalar below `node` at `prefix` + its dotted key.
void read_settings(const Node& node, const std::string& prefix, Recipe& recipe,
                   Problems& problems) {
  if (!node.is_map()) {
    yaml::report(problems, node,
                 fmt::format("'{}' must be a map of keys, found {}",
                             prefix.substr(0, prefix.size() - 1), yaml::describe(node)));
    return;
  }
  const std::vector<std::string> words = words_below(prefix);
  for (const yaml::Member& member : node.members) {
    const std::string key = prefix + member.key;
    const bool group_of_keys = !words_below(key + ".").empty();
    if (std::find(words.begin(), words.end(), member.key) == words.end()) {
      problems.push_back({node.file, member.line, member.column, unknown_key(prefix, member.key)});
    } else if (group_of_keys) {
      read_settings(member.value, key + ".", recipe, problems);
    } else if (auto wrong = apply_edit(recipe, key, yaml::to_json(member.value))) {
      yaml::report(problems, member.value, *wrong);
    }
  }
}

/// The value side starts as a copy of the key side, without its centre and token scale; RoPE is
/// the keys' alone.
void inherit_value_side(Recipe& recipe) {
  for (const Param& param : side_params()) {
    const bool of_keys = param.key == "space" || param.key == "center" ||
                         param.key == "token_scale" || param.key == "mix_tokens";
    if (of_keys) continue;
    recipe.settings["value." + param.key] = recipe.settings.at("key." + param.key);
  }
}

Source read_source(const Node& node, Problems& problems) {
  Source source;
  yaml::Fields fields(node, "source", problems);
  const auto text = [&](const char* key, std::string& target) {
    if (const Node* value = fields.get(key)) {
      target = yaml::read_text(*value, std::string("source.") + key, problems).value_or("");
    }
  };
  text("paper", source.paper);
  text("code", source.code);
  text("origin", source.origin);
  if (const Node* value = fields.get("differs")) {
    if (!value->is_list()) {
      yaml::report(problems, *value,
                   "'source.differs' must be a list of sentences, found " + yaml::describe(*value));
    }
    for (const Node& item : value->items) {
      source.differs.push_back(yaml::read_text(item, "source.differs", problems).value_or(""));
    }
  }
  if (const Node* value = fields.get("published_bits")) {
    source.published_bits = yaml::read_real(*value, "source.published_bits", problems);
  }
  fields.finish();
  return source;
}

/// "3" or "0-1".
bool read_layers(const std::string& text, LayerRule& rule) {
  const char* end = text.data() + text.size();
  auto [first_end, first_error] = std::from_chars(text.data(), end, rule.first);
  if (first_error != std::errc{} || rule.first < 0) return false;
  rule.last = rule.first;
  if (first_end == end) return true;
  if (*first_end != '-') return false;
  auto [last_end, last_error] = std::from_chars(first_end + 1, end, rule.last);
  return last_error == std::errc{} && last_end == end && rule.first <= rule.last;
}

void read_sides(yaml::Fields& fields, Recipe& recipe, Problems& problems) {
  if (const Node* key = fields.get("key")) read_settings(*key, "key.", recipe, problems);
  inherit_value_side(recipe);
  if (const Node* value = fields.get("value")) read_settings(*value, "value.", recipe, problems);
  for (const std::string& section : kSections) {
    if (const Node* node = fields.get(section)) {
      read_settings(*node, section + ".", recipe, problems);
    }
  }
}

Recipe read_rule_recipe(const Node& node, const std::string& what, const FindMethod& find,
                        Problems& problems) {
  Recipe recipe;
  recipe.settings = default_settings();
  yaml::Fields fields(node, what, problems);
  const Node* use = fields.get("use");
  if (use != nullptr) {
    if (const auto id = yaml::read_text(*use, what + ".use", problems)) {
      try {
        recipe = find(*id);
      } catch (const Error& error) {
        yaml::report(problems, *use, error.what());
      }
    }
    if (const Node* set = fields.get("set")) read_edits(*set, recipe, problems);
  } else {
    read_sides(fields, recipe, problems);
  }
  fields.finish();
  return recipe;
}

void read_flat_edits(const Node& node, const std::string& prefix, Recipe& recipe,
                     Problems& problems) {
  for (const yaml::Member& member : node.members) {
    const std::string key = prefix + member.key;
    if (member.value.is_map()) {
      read_flat_edits(member.value, key + ".", recipe, problems);
    } else if (auto wrong = apply_edit(recipe, key, yaml::to_json(member.value))) {
      if (is_recipe_key(key)) {
        yaml::report(problems, member.value, *wrong);
      } else {
        problems.push_back({node.file, member.line, member.column, *wrong});
      }
    }
  }
}

}  // namespace

void read_layer_rules(const Node& node, Recipe& recipe, const FindMethod& find,
                      Problems& problems) {
  if (!node.is_map()) {
    yaml::report(
        problems, node,
        "'layers' must be a map such as {\"0-1\": {use: bf16}}, found " + yaml::describe(node));
    return;
  }
  recipe.layers.clear();
  for (const yaml::Member& member : node.members) {
    LayerRule rule;
    const auto complain = [&](const std::string& message) {
      problems.push_back({node.file, member.line, member.column, message});
    };
    if (!read_layers(member.key, rule)) {
      complain(
          fmt::format("layers must be a number or a range such as 0-1, found '{}'", member.key));
      continue;
    }
    for (const LayerRule& other : recipe.layers) {
      if (rule.first <= other.last && other.first <= rule.last) {
        complain(fmt::format("layers {} already have a recipe ({}-{})", member.key, other.first,
                             other.last));
      }
    }
    rule.recipe = read_rule_recipe(member.value, "layers." + member.key, find, problems);
    recipe.layers.push_back(std::move(rule));
  }
}

void read_edits(const Node& node, Recipe& recipe, Problems& problems) {
  if (!node.is_map()) {
    yaml::report(problems, node, "'set' must be a map of keys, found " + yaml::describe(node));
    return;
  }
  read_flat_edits(node, "", recipe, problems);
}

Recipe read_recipe(const Node& node, const std::vector<std::string>& extra, const FindMethod& find,
                   Problems& problems) {
  Recipe recipe;
  recipe.settings = default_settings();
  yaml::Fields fields(node, "the method", problems);
  const Node* id = fields.get("id");
  if (id != nullptr) recipe.id = yaml::read_text(*id, "id", problems).value_or("");
  if (id == nullptr && node.is_map()) yaml::report(problems, node, "a method needs an 'id'");
  if (const Node* title = fields.get("title")) {
    recipe.title = yaml::read_text(*title, "title", problems).value_or("");
  }
  if (const Node* source = fields.get("source")) recipe.source = read_source(*source, problems);
  read_sides(fields, recipe, problems);
  if (const Node* layers = fields.get("layers")) {
    read_layer_rules(*layers, recipe, find, problems);
  }
  for (const std::string& key : extra) fields.get(key);
  fields.finish();
  return recipe;
}

Recipe parse_recipe(const std::string& yaml, const std::string& file,
                    std::vector<Problem>& problems) {
  const size_t before = problems.size();
  const Node node = yaml::parse(yaml, file, problems);
  // Of a file that could not be read there is no more to say.
  if (problems.size() > before && !node.is_map()) return {};
  return read_recipe(node, {}, preset, problems);
}

}  // namespace kvlab::method
