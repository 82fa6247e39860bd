#include "store/experiment_difference.h"

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <set>

namespace kvlab::store {
namespace {

std::string shown(const YAML::Node& node) {
  if (!node.IsDefined()) return "absent";
  YAML::Emitter emitter;
  emitter << YAML::Flow << node;
  const std::string text = emitter.c_str();
  return text.size() > 60 ? text.substr(0, 57) + "..." : text;
}

/// Calls `found(place, a, b)` for the first difference below `place`; true where there is one.
template <class Found>
bool differ(const std::string& place, const YAML::Node& a, const YAML::Node& b,
            const Found& found) {
  if (a.IsDefined() && b.IsDefined() && a.Type() == b.Type()) {
    if (a.IsScalar() && a.Scalar() == b.Scalar()) return false;
    if (a.IsNull()) return false;
    if (a.IsMap()) {
      std::set<std::string> keys;
      for (const auto& entry : a) keys.insert(entry.first.Scalar());
      for (const auto& entry : b) keys.insert(entry.first.Scalar());
      for (const std::string& key : keys) {
        const std::string below = place.empty() ? key : place + "." + key;
        if (below != "output" && differ(below, a[key], b[key], found)) return true;
      }
      return false;
    }
    if (a.IsSequence() && a.size() == b.size()) {
      for (size_t i = 0; i < a.size(); ++i) {
        if (differ(fmt::format("{}[{}]", place, i), a[i], b[i], found)) return true;
      }
      return false;
    }
  }
  found(place, a, b);
  return true;
}

}  // namespace

std::string experiment_difference(const std::string& a, const std::string& b,
                                  const std::string& name_a, const std::string& name_b) {
  if (a == b) return "";
  std::string text;
  try {
    const YAML::Node first = YAML::Load(a);
    const YAML::Node second = YAML::Load(b);
    differ("", first, second, [&](const std::string& place, const auto& x, const auto& y) {
      text = fmt::format("{} is {} in {} and {} in {}", place.empty() ? "the experiment" : place,
                         shown(x), name_a, shown(y), name_b);
    });
  } catch (const YAML::Exception&) {
    text = fmt::format("the texts in {} and {} are not equal", name_a, name_b);
  }
  return text;
}

}  // namespace kvlab::store
