#include "model/weights.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/hash.h"
#include "base/names.h"
#include "data/file_hash.h"

namespace kvlab::model {
namespace {

namespace fs = std::filesystem;

/// The files that model.safetensors.index.json names.
std::set<fs::path> indexed_files(const fs::path& index) {
  const nlohmann::json json =
      nlohmann::json::parse(std::ifstream(index), nullptr, /*allow_exceptions=*/false);
  const auto map = json.is_object() ? json.find("weight_map") : json.end();
  if (map == json.end() || !map->is_object()) {
    throw Error(fmt::format("{}: expected JSON with a 'weight_map'", index.string()));
  }
  std::set<fs::path> files;
  for (const auto& [tensor, name] : map->items()) {
    const fs::path file = name.is_string() ? name.get<std::string>() : "";
    if (file.empty() || file != file.filename()) {
      throw Error(fmt::format("{}: '{}' is in {}, expected the name of a file beside it",
                              index.string(), tensor, name.dump()));
    }
    files.insert(index.parent_path() / file);
  }
  return files;
}

/// All *.safetensors, without what Mistral's releases hold once more under other names.
std::set<fs::path> found_files(const fs::path& folder) {
  std::set<fs::path> files;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const fs::path& path = entry.path();
    if (path.extension() != ".safetensors") continue;
    const bool is_copy = path.filename().string().starts_with("consolidated") &&
                         fs::exists(folder / "model.safetensors");
    if (!is_copy) files.insert(path);
  }
  return files;
}

}  // namespace

Weights::Weights(const std::filesystem::path& folder) : folder_(folder) {
  const fs::path index = folder / "model.safetensors.index.json";
  const std::set<fs::path> files = fs::exists(index) ? indexed_files(index) : found_files(folder);
  if (files.empty()) {
    throw Error(fmt::format("{}: holds no *.safetensors", folder.string()));
  }
  files_.assign(files.begin(), files.end());
  for (const std::filesystem::path& file : files_) {
    data::Safetensors read = data::Safetensors::open(file);
    for (auto& [name, entry] : read.entries) {
      if (!entries_.emplace(name, std::move(entry)).second) {
        throw Error(fmt::format("{}: '{}' stands in two files", file.string(), name));
      }
    }
  }
}

at::Tensor Weights::get(const std::string& name, const std::vector<int64_t>& shape) const {
  const auto found = entries_.find(name);
  if (found == entries_.end()) {
    throw Error(fmt::format("{}: the weights lack '{}'{}", folder_.string(), name,
                            did_you_mean(name, names())));
  }
  const auto& [type, tensor] = found->second;
  if (type != "F32" && type != "F16" && type != "BF16") {
    throw Error(
        fmt::format("{}: '{}' is {}, expected F32, F16 or BF16", folder_.string(), name, type));
  }
  if (tensor.sizes() != at::IntArrayRef(shape)) {
    throw Error(fmt::format("{}: '{}' is [{}], config.json says [{}]", folder_.string(), name,
                            fmt::join(tensor.sizes().vec(), ", "), fmt::join(shape, ", ")));
  }
  return tensor;
}

std::vector<std::string> Weights::names() const {
  std::vector<std::string> names;
  for (const auto& [name, entry] : entries_) names.push_back(name);
  return names;
}

std::string Weights::content() const {
  std::string text;
  for (const std::filesystem::path& file : files_) {
    text += file.filename().string() + " " + data::cached_sha256(file) + "\n";
  }
  return sha256(text);
}

}  // namespace kvlab::model
