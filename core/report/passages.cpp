#include "report/passages.h"

#include <fmt/format.h>

#include <vector>

#include "report/grid.h"

namespace kvlab::report {
namespace {

using nlohmann::json;

bool is_drawn(const store::SummaryRow& row, const json& dataset) {
  return row.seed_used && dataset.contains("source") && dataset["source"] == "synthetic";
}

/// What a row's cell says of its dataset; empty where it says nothing.
json dataset_of(const store::Results& results, const store::SummaryRow& row) {
  const json config = config_of(results, row);
  const bool is_known = config.is_object() && config.contains("dataset");
  return is_known && config["dataset"].is_object() ? config["dataset"] : json::object();
}

/// What tells that two datasets are of one text, whatever they are called.
std::vector<std::string> contents_of(const store::SummaryRow& row, const json& dataset) {
  std::vector<std::string> contents;
  if (dataset.contains("params") && dataset["params"].is_object()) {
    json params = dataset["params"];  // synthetic: a text has no length
    for (const char* key : {"tokens", "batch", "dtype"}) params.erase(key);
    return {fmt::format("{} {}", params.dump(), is_drawn(row, dataset) ? row.seed : 0)};
  }
  if (dataset.contains("sha256")) contents.push_back(dataset["sha256"].dump());
  // Of a whole model the hash is that of the tokens used, which a length cuts.
  for (const char* key : {"tokens_path", "needles_path"}) {
    if (!dataset.contains(key)) continue;
    contents.push_back(dataset[key].dump() + dataset.value("passage", json()).dump() +
                       dataset.value("task", json()).dump());
  }
  return contents;
}

}  // namespace

Passages::Passages(const store::Results& results) {
  std::map<std::string, std::string> holders;      // the first name of each content
  std::map<std::string, std::string> first_names;  // of names that are not the first of a content
  const auto first_name = [&](std::string name) {
    for (auto at = first_names.find(name); at != first_names.end();) {
      name = at->second;
      at = first_names.find(name);
    }
    return name;
  };
  for (const store::SummaryRow& row : results.rows) {
    const json dataset = dataset_of(results, row);
    std::string& name = names_[&row];
    name = is_drawn(row, dataset) ? fmt::format("{} seed {}", row.dataset, row.seed) : row.dataset;
    for (const std::string& content : contents_of(row, dataset)) {
      const std::string known = first_name(holders.try_emplace(content, name).first->second);
      const std::string own = first_name(name);
      if (known != own) first_names[own] = known;
    }
  }
  for (auto& [row, name] : names_) name = first_name(name);
}

const std::string& Passages::of(const store::SummaryRow& row) const { return names_.at(&row); }

}  // namespace kvlab::report
