#include "report/differs.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/names.h"
#include "report/grid.h"
#include "store/summary.h"

namespace kvlab::report {
namespace {

using nlohmann::json;
using Words = std::vector<std::string>;

constexpr size_t kMostNamed = 3;

/// Settings that are already columns of the table.
struct Shown {
  Words axes;
  bool has(const std::string& key) const {
    const bool both_groups =
        key.ends_with(".codec.group") && std::find(axes.begin(), axes.end(), "group") != axes.end();
    return both_groups || std::find(axes.begin(), axes.end(), key) != axes.end();
  }
};

std::string text_at(const json& settings, const std::string& key) {
  const auto found = settings.find(key);
  if (found == settings.end() || found->is_null()) return "";
  return store::axis_text(*found);
}

const json& child(const json& parent, const std::string& key) {
  static const json none = json::object();
  if (!parent.is_object()) return none;
  const auto found = parent.find(key);
  return found == parent.end() || !found->is_object() ? none : *found;
}

/// A codec's setting: once where both sides have it, else "keys/values".
std::string codec_setting(const json& method, const std::string& key, const Shown& shown) {
  const auto side = [&](const std::string& name) {
    if (shown.has(name + ".codec." + key)) return std::string();
    return text_at(child(child(method, name), "codec"), key);
  };
  std::string keys = side("key");
  const std::string values = side("value");
  if (keys == values || values.empty()) return keys;
  return keys.empty() ? values : keys + "/" + values;
}

bool is_quantized(const json& method) {
  const auto quantizes = [&](const char* side) {
    const std::string kind = text_at(child(child(method, side), "codec"), "kind");
    return !kind.empty() && kind != "passthrough";
  };
  return quantizes("key") || quantizes("value");
}

/// "sink 0, recent 128, kivi", without what the table shows.
std::string window_setting(const json& method, const Shown& shown) {
  const json& window = child(method, "window");
  Words parts;
  for (const char* key : {"sink", "recent", "flush"}) {
    const std::string value = text_at(window, key);
    if (value.empty() || shown.has(std::string("window.") + key)) continue;
    parts.push_back(std::string(key) == "flush" ? value : fmt::format("{} {}", key, value));
  }
  return join(parts, " ");
}

std::string setting(const json& method, const std::string& key, const Shown& shown) {
  if (!is_quantized(method)) return "";
  return key == "window" ? window_setting(method, shown) : codec_setting(method, key, shown);
}

}  // namespace

std::vector<std::string> differing_settings(const store::Results& results, const Layout& layout) {
  Shown shown;
  for (const Words* words : {&layout.rows, &layout.cols}) {
    shown.axes.insert(shown.axes.end(), words->begin(), words->end());
  }
  Words labels;
  std::map<std::string, std::vector<json>> methods;  // of a label's complete cells
  for (const store::SummaryRow& row : results.rows) {
    if (!complete_cell(results, row)) continue;
    add_once(&labels, row.label);
    methods[row.label].push_back(child(config_of(results, row), "method"));
  }

  Words lines;
  for (const char* key : {"bits", "group", "grid", "clip", "rounding", "params", "window"}) {
    Words values;
    std::map<std::string, Words> holders;
    for (const std::string& label : labels) {
      Words found;
      for (const json& method : methods[label]) {
        const std::string value = setting(method, key, shown);
        if (!value.empty()) add_once(&found, value);
      }
      if (found.empty()) continue;
      const std::string value = join(found, " or ");
      add_once(&values, value);
      holders[value].push_back(label);
    }
    if (values.size() < 2) continue;
    // The most common value comes last, without names where they are many.
    std::stable_sort(values.begin(), values.end(), [&](const auto& a, const auto& b) {
      return holders[a].size() < holders[b].size();
    });
    Words parts;
    for (const std::string& value : values) {
      const Words& names = holders[value];
      const bool are_rest = value == values.back() && names.size() > kMostNamed;
      parts.push_back(fmt::format(
          "{} ({})", value, are_rest ? fmt::format("the other {}", names.size()) : few(names)));
    }
    lines.push_back(fmt::format("{}: {}", key, join(parts, "; ")));
  }
  return lines;
}

}  // namespace kvlab::report
