#include "model/weights.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "base/hash.h"
#include "base/names.h"
#include "data/file_hash.h"

namespace kvlab::model {

Weights::Weights(const std::filesystem::path& folder) : folder_(folder) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (entry.path().extension() == ".safetensors") files_.push_back(entry.path());
  }
  if (files_.empty()) {
    throw Error(fmt::format("{}: holds no *.safetensors", folder.string()));
  }
  std::sort(files_.begin(), files_.end());
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
