#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/yaml.h"
#include "method/recipe.h"

namespace kvlab::method {

/// The method that `use: ID` of a layer rule names; throws Error where there is none.
using FindMethod = std::function<const Recipe&(const std::string& id)>;

/// A method from a YAML node, every mistake reported at its place. `extra` are keys that the caller
/// reads itself.
Recipe read_recipe(const yaml::Node& node, const std::vector<std::string>& extra,
                   const FindMethod& find, yaml::Problems& problems);

/// The rules of `layers: {"0-1": {use: bf16}}` in place of those that the recipe has.
void read_layer_rules(const yaml::Node& node, Recipe& recipe, const FindMethod& find,
                      yaml::Problems& problems);

/// Applies `set: {...}` to the recipe. Nested maps and dotted keys are the same thing.
void read_edits(const yaml::Node& node, Recipe& recipe, yaml::Problems& problems);

}  // namespace kvlab::method
