#include "model/safetensors.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "base/hash.h"
#include "base/names.h"
#include "data/file_hash.h"

namespace kvlab::model {
namespace {

using nlohmann::json;

constexpr uint64_t kPrefix = 8;  // bytes of the header's size

/// A file's bytes, mapped for as long as somebody holds them.
struct Mapping {
  explicit Mapping(const std::filesystem::path& path) {
    const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    struct stat status = {};
    if (file >= 0 && ::fstat(file, &status) == 0 && status.st_size > 0) {
      size = static_cast<uint64_t>(status.st_size);
      // Private: libtorch wants memory that it could write; nobody does.
      bytes = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, file, 0);
    }
    if (file >= 0) ::close(file);
    if (bytes == MAP_FAILED) {
      throw Error(fmt::format("{}: cannot be read, expected a safetensors file", path.string()));
    }
  }
  Mapping(const Mapping&) = delete;
  ~Mapping() { ::munmap(bytes, size); }

  void* bytes = MAP_FAILED;
  uint64_t size = 0;
};

std::optional<at::ScalarType> scalar_type(const std::string& name) {
  if (name == "F32") return at::kFloat;
  if (name == "F16") return at::kHalf;
  if (name == "BF16") return at::kBFloat16;
  return std::nullopt;
}

struct Entry {
  std::string type;
  std::vector<int64_t> shape;
  uint64_t begin = 0, end = 0;
};

/// The entry that a header's value describes; nothing where it is not well formed.
std::optional<Entry> entry_of(const json& value) {
  const auto is_whole = [](const json& number) {
    return number.is_number_unsigned() && number.get<uint64_t>() < (uint64_t{1} << 48);
  };
  if (!value.is_object() || !value.contains("dtype") || !value["dtype"].is_string() ||
      !value.contains("shape") || !value["shape"].is_array() || !value.contains("data_offsets") ||
      !value["data_offsets"].is_array() || value["data_offsets"].size() != 2 ||
      !std::all_of(value["shape"].begin(), value["shape"].end(), is_whole) ||
      !std::all_of(value["data_offsets"].begin(), value["data_offsets"].end(), is_whole)) {
    return std::nullopt;
  }
  Entry entry{value["dtype"].get<std::string>(), value["shape"].get<std::vector<int64_t>>(),
              value["data_offsets"][0].get<uint64_t>(), value["data_offsets"][1].get<uint64_t>()};
  return entry;
}

}  // namespace

Safetensors::Safetensors(const std::filesystem::path& folder) : folder_(folder) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (entry.path().extension() == ".safetensors") files_.push_back(entry.path());
  }
  if (files_.empty()) {
    throw Error(fmt::format("{}: holds no *.safetensors", folder.string()));
  }
  std::sort(files_.begin(), files_.end());
  for (const std::filesystem::path& file : files_) add(file);
}

void Safetensors::add(const std::filesystem::path& file) {
  const auto mapping = std::make_shared<Mapping>(file);
  uint64_t header = 0;
  if (mapping->size >= kPrefix) std::memcpy(&header, mapping->bytes, kPrefix);
  if (header == 0 || header > mapping->size - std::min(mapping->size, kPrefix)) {
    throw Error(fmt::format("{}: is no safetensors file, or cut short", file.string()));
  }
  const char* text = static_cast<const char*>(mapping->bytes) + kPrefix;
  const json entries = json::parse(text, text + header, nullptr, /*allow_exceptions=*/false);
  if (!entries.is_object()) {
    throw Error(fmt::format("{}: its header is no JSON object", file.string()));
  }
  char* data = static_cast<char*>(mapping->bytes) + kPrefix + header;
  const uint64_t room = mapping->size - kPrefix - header;
  for (const auto& [name, value] : entries.items()) {
    if (name == "__metadata__") continue;
    const auto entry = entry_of(value);
    if (!entry || entry->begin > entry->end || entry->end > room) {
      throw Error(
          fmt::format("{}: the entry of '{}' does not lie within the file", file.string(), name));
    }
    if (!types_.emplace(name, entry->type).second) {
      throw Error(fmt::format("{}: '{}' stands in two files", file.string(), name));
    }
    const auto type = scalar_type(entry->type);
    at::Tensor& tensor = tensors_[name];
    if (!type) continue;
    uint64_t bytes = at::elementSize(*type);
    for (const int64_t size : entry->shape) bytes *= static_cast<uint64_t>(size);
    if (bytes != entry->end - entry->begin) {
      throw Error(fmt::format("{}: '{}' has {} bytes, its shape [{}] of {} needs {}", file.string(),
                              name, entry->end - entry->begin, fmt::join(entry->shape, ", "),
                              entry->type, bytes));
    }
    tensor = at::from_blob(
        data + entry->begin, entry->shape, [mapping](void*) {}, at::TensorOptions(*type));
  }
}

at::Tensor Safetensors::get(const std::string& name, const std::vector<int64_t>& shape) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) {
    throw Error(fmt::format("{}: the weights lack '{}'{}", folder_.string(), name,
                            did_you_mean(name, names())));
  }
  if (!found->second.defined()) {
    throw Error(fmt::format("{}: '{}' is {}, expected F32, F16 or BF16", folder_.string(), name,
                            types_.at(name)));
  }
  if (found->second.sizes() != at::IntArrayRef(shape)) {
    throw Error(fmt::format("{}: '{}' is [{}], config.json says [{}]", folder_.string(), name,
                            fmt::join(found->second.sizes().vec(), ", "), fmt::join(shape, ", ")));
  }
  return found->second;
}

std::vector<std::string> Safetensors::names() const {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : tensors_) names.push_back(name);
  return names;
}

std::string Safetensors::content() const {
  std::string text;
  for (const std::filesystem::path& file : files_) {
    text += file.filename().string() + " " + data::cached_sha256(file) + "\n";
  }
  return sha256(text);
}

}  // namespace kvlab::model
