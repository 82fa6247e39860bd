#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/names.h"
#include "cache/backend.h"
#include "cache/packed_format.h"
#include "cli/verbs.h"
#include "data/synthetic_params.h"
#include "method/recipe.h"
#include "method/schema.h"
#include "metrics_catalog/catalog.h"
#include "quant/parts.h"
#include "transform/parts.h"

namespace kvlab::cli {
namespace {

using nlohmann::json;

/// What a method looks at beside queries, keys and values: "calibration, k_pre".
std::string capture_needs(const method::Recipe& recipe) {
  std::vector<std::string> needs;
  if (method::needs_calibration(recipe)) {
    // The loss of values is that of the output matrix.
    const bool by_output = get_text(recipe.settings, "value.basis") == "balanced";
    needs.emplace_back(by_output ? "calibration with w_o" : "calibration");
  }
  if (get_text(recipe.settings, "key.space") == "pre_rope") needs.emplace_back("k_pre");
  if (get_text(recipe.settings, "protect.kind") == "massive") needs.emplace_back("hidden_absmax");
  if (get_text(recipe.settings, "evict.kind") == "heavy_hitter") needs.emplace_back("all queries");
  return needs.empty() ? "-" : join(needs);
}

json methods() {
  json list = json::array();
  for (const std::string& id : method::method_ids()) {
    const method::Recipe& recipe = method::preset(id);
    const json form = method::canonical(recipe, 128);
    const auto codec = [&](const char* side) {
      const json& settings = form[side]["codec"];
      if (settings["kind"] != "uniform") return settings["kind"].get<std::string>();
      return fmt::format("{} bits per {}, G {}, {}", settings["bits"].get<int>(),
                         settings["axis"].get<std::string>(), settings["group"].get<int>(),
                         settings["grid"].get<std::string>());
    };
    const bool packed = !cache::packed_refusal(recipe.settings, 128, DType::bf16);
    list.push_back({{"name", id},
                    {"title", recipe.title},
                    {"keys", codec("key")},
                    {"values", codec("value")},
                    {"published_bits",
                     recipe.source.published_bits ? json(*recipe.source.published_bits) : json()},
                    {"backends", packed ? "reference, cpu, cuda" : "reference"},
                    {"needs_calibration", method::needs_calibration(recipe)},
                    {"needs", capture_needs(recipe)},
                    {"paper", recipe.source.paper}});
  }
  return list;
}

json datasets() {
  json list = json::array();
  for (const Param& param : data::synthetic_params()) {
    if (param.key != "pattern") continue;
    for (const std::string& pattern : param.choices) {
      list.push_back(
          {{"name", "synthetic " + pattern}, {"help", "source: synthetic, pattern: " + pattern}});
    }
  }
  list.push_back(
      {{"name", "capture"},
       {"help",
        "source: capture, path: FILE.h5 (kvlab.capture/1; datasets/capture_hf.py makes one)"}});
  list.push_back(
      {{"name", "model"},
       {"help",
        "source: model, path: FOLDER, tokens: FILE.h5 or needles: FILE.h5 (a Hugging Face "
        "folder; datasets/README.md)"}});
  return list;
}

json metrics_list() {
  json list = json::array();
  for (const metrics::MetricInfo& metric : metrics::catalog()) {
    list.push_back({{"name", metric.name},
                    {"measure", metric.measure},
                    {"unit", metric.unit},
                    {"help", metric.help}});
  }
  return list;
}

json backends() {
  json list = {
      {{"name", "reference"}, {"help", "libtorch tensors, float64 accumulation"}},
      {{"name", "cpu"},
       {"help", fmt::format("packed bits on the CPU, {} code", cache::cpu_code())}},
      {{"name", "cuda"}, {"help", "packed bits on an NVIDIA GPU, compute capability 8.0 and up"}}};
  for (json& backend : list) {
    const auto missing = cache::missing_backend(backend["name"]);
    backend["available"] = !missing;
    if (missing) backend["help"] = backend["help"].get<std::string>() + "; " + *missing;
  }
  return list;
}

json components() {
  json list = json::array();
  const auto add = [&](const std::vector<Part>& parts) {
    for (const Part& part : parts) {
      std::vector<std::string> params;
      for (const Param& param : part.params) params.push_back(param.key);
      list.push_back({{"name", part.family + ": " + part.name},
                      {"help", part.help},
                      {"params", join(params)},
                      {"needs_calibration", part.calibrated}});
    }
  };
  add(transform::transform_parts());
  add(quant::codec_parts());
  const std::pair<const char*, const char*> choices[] = {
      {"window", "flush"}, {"protect", "kind"}, {"evict", "kind"}};
  for (const auto& [section, key] : choices) {
    for (const Param& param : method::section_params(section)) {
      if (param.key != key) continue;
      for (const std::string& choice : param.choices) {
        std::vector<std::string> params;
        for (const std::string& used : method::used_in_section(section, {{key, choice}})) {
          if (used != key) params.push_back(used);
        }
        list.push_back({{"name", fmt::format("{}.{}: {}", section, key, choice)},
                        {"help", param.help},
                        {"params", join(params)}});
      }
    }
  }
  return list;
}

std::string cell_text(const json& value) {
  if (value.is_null()) return "-";
  if (value.is_boolean()) return value.get<bool>() ? "yes" : "no";
  return value.is_string() ? value.get<std::string>() : value.dump();
}

/// The text in lines of at most so many bytes, broken after commas.
std::vector<std::string> wrapped(const std::string& text, size_t width) {
  std::vector<std::string> lines(1);
  for (size_t begin = 0; begin < text.size();) {
    const size_t comma = text.find(", ", begin);
    const size_t end = comma == std::string::npos ? text.size() : comma + 2;
    const std::string word = text.substr(begin, end - begin);
    if (!lines.back().empty() && lines.back().size() + word.size() > width) lines.emplace_back();
    lines.back() += word;
    begin = end;
  }
  return lines;
}

/// A heading, and columns as wide as their widest entry (in bytes: the names are ASCII, help comes
/// last), in the order first seen. Long lists go over several lines; the last column is as long as
/// it is.
void print_text(const json& list, const std::vector<std::string>& columns) {
  constexpr size_t kWidest = 60;
  std::vector<size_t> widths(columns.size(), 0);
  std::vector<std::vector<std::vector<std::string>>> entries;  // item, column, line
  json rows = json::array({json::object()});
  for (const std::string& column : columns) rows[0][column] = column;
  rows.insert(rows.end(), list.begin(), list.end());
  for (const json& item : rows) {
    entries.emplace_back();
    for (size_t i = 0; i < columns.size(); ++i) {
      const bool is_last = i + 1 == columns.size();
      entries.back().push_back(wrapped(cell_text(item.value(columns[i], json(""))),
                                       is_last ? std::string::npos : kWidest));
      if (is_last) continue;
      for (const std::string& line : entries.back().back()) {
        widths[i] = std::max(widths[i], line.size());
      }
    }
  }
  for (const auto& entry : entries) {
    size_t height = 0;
    for (const auto& lines : entry) height = std::max(height, lines.size());
    for (size_t row = 0; row < height; ++row) {
      std::string line;
      for (size_t i = 0; i < columns.size(); ++i) {
        line += fmt::format("{:<{}}  ", row < entry[i].size() ? entry[i][row] : "", widths[i]);
      }
      line.erase(line.find_last_not_of(' ') + 1);
      fmt::print("{}\n", line);
    }
  }
}

struct Listing {
  std::string name;
  std::function<json()> make;
  std::vector<std::string> columns;
};

const std::vector<Listing>& listings() {
  static const std::vector<Listing> all = {
      {"methods",
       methods,
       {"name", "title", "keys", "values", "published_bits", "backends", "needs", "paper"}},
      {"datasets", datasets, {"name", "help"}},
      {"metrics", metrics_list, {"name", "measure", "unit", "help"}},
      {"backends", backends, {"name", "available", "help"}},
      {"components", components, {"name", "params", "help"}},
  };
  return all;
}

void show_method(const std::string& id, bool as_json) {
  const method::Recipe& recipe = method::preset(id);
  const json form = method::canonical(recipe, 128);
  const method::Source& source = recipe.source;
  const auto refusal = cache::packed_refusal(recipe.settings, 128, DType::bf16);
  if (as_json) {
    json all = {{"id", recipe.id},
                {"title", recipe.title},
                {"recipe", form},
                {"source",
                 {{"paper", source.paper},
                  {"code", source.code},
                  {"origin", source.origin},
                  {"differs", source.differs}}},
                {"needs_calibration", method::needs_calibration(recipe)}};
    all["published_bits"] = source.published_bits ? json(*source.published_bits) : json();
    all["packed"] = refusal ? json(*refusal) : json(true);
    fmt::print("{}\n", all.dump(2));
    return;
  }
  fmt::print("{}: {}\n", recipe.id, recipe.title);
  if (!source.paper.empty()) fmt::print("paper: {}\n", source.paper);
  if (!source.code.empty()) fmt::print("code: {}\n", source.code);
  if (!source.origin.empty()) fmt::print("origin: {}\n", source.origin);
  fmt::print("published bits per element: {}\n",
             source.published_bits ? fmt::format("{}", *source.published_bits)
                                   : "none known (kvlab table shows the measured ones)");
  fmt::print("needs: {}\n", capture_needs(recipe));
  fmt::print("backends (at d = 128): reference{}\n\nrecipe (at d = 128):\n",
             refusal ? " alone; " + *refusal : ", cpu, cuda");
  for (const auto& [section, settings] : form.items()) {
    fmt::print("  {}:{}\n", section, settings.empty() ? " none" : "");
    for (const auto& [key, value] : settings.items()) {
      if (!value.is_object()) {
        fmt::print("    {}: {}\n", key, cell_text(value));
        continue;
      }
      std::vector<std::string> entries;
      for (const auto& [name, entry] : value.items())
        entries.push_back(name + ": " + cell_text(entry));
      fmt::print("    {}: {{{}}}\n", key, join(entries));
    }
  }
  if (!source.differs.empty()) fmt::print("\nwhere paper, code and this preset differ:\n");
  for (const std::string& sentence : source.differs) fmt::print("  - {}\n", sentence);
}

}  // namespace

void add_list(CLI::App& app, Exit&) {
  struct Arguments {
    std::string what;
    bool as_json = false;
  };
  auto arguments = std::make_shared<Arguments>();
  CLI::App* verb =
      app.add_subcommand("list", "List methods, datasets, metrics, backends or components");
  verb->add_option("what", arguments->what, "methods, datasets, metrics, backends or components")
      ->required();
  verb->add_flag("--json", arguments->as_json, "print JSON");
  verb->footer("Example: kvlab list methods");
  verb->callback([arguments] {
    std::vector<std::string> names;
    for (const Listing& listing : listings()) {
      names.push_back(listing.name);
      if (listing.name != arguments->what) continue;
      const json list = listing.make();
      if (arguments->as_json) {
        fmt::print("{}\n", list.dump(2));
      } else {
        print_text(list, listing.columns);
      }
      return;
    }
    throw Error(fmt::format("'{}' cannot be listed{}; choose from {}", arguments->what,
                            did_you_mean(arguments->what, names), join(names)));
  });
}

void add_show(CLI::App& app, Exit&) {
  struct Arguments {
    std::string id;
    bool as_json = false;
  };
  auto arguments = std::make_shared<Arguments>();
  CLI::App* verb = app.add_subcommand(
      "show", "Show a method's recipe, its source, and where paper and code differ");
  verb->add_option("method", arguments->id, "a method of kvlab list methods")->required();
  verb->add_flag("--json", arguments->as_json, "print JSON");
  verb->footer("Example: kvlab show oscar_ots");
  verb->callback([arguments] { show_method(arguments->id, arguments->as_json); });
}

}  // namespace kvlab::cli
