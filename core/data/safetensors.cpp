#include "data/safetensors.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <vector>

#include "base/error.h"
#include "base/replacement.h"
#include "base/utf8.h"

namespace kvlab::data {
namespace {

using nlohmann::json;

constexpr uint64_t kPrefix = 8;                // bytes of the header's size
constexpr uint64_t kMostHeader = 100'000'000;  // as the format's own reader has it
constexpr size_t kMostDimensions = 8;
constexpr const char* kMetadata = "__metadata__";

struct Type {
  const char* name;
  at::ScalarType type;
};
constexpr std::array kTypes = {Type{"F64", at::kDouble}, Type{"F32", at::kFloat},
                               Type{"F16", at::kHalf}, Type{"BF16", at::kBFloat16},
                               Type{"I64", at::kLong}};

[[noreturn]] void fail(const std::filesystem::path& path, const std::string& what) {
  throw Error(fmt::format("{}: {}", path.string(), what));
}

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
    if (bytes == MAP_FAILED) fail(path, "cannot be read, expected a safetensors file");
  }
  Mapping(const Mapping&) = delete;
  ~Mapping() { ::munmap(bytes, size); }

  void* bytes = MAP_FAILED;
  uint64_t size = 0;
};

/// An entry of the header.
struct Place {
  std::string type;
  std::vector<int64_t> shape;
  uint64_t begin = 0, end = 0;
};

/// What a header's value describes; nothing where it is not well formed.
std::optional<Place> place_of(const json& value) {
  const auto is_whole = [](const json& number) {
    return number.is_number_unsigned() && number.get<uint64_t>() < (uint64_t{1} << 48);
  };
  if (!value.is_object() || !value.contains("dtype") || !value["dtype"].is_string() ||
      !value.contains("shape") || !value["shape"].is_array() ||
      value["shape"].size() > kMostDimensions || !value.contains("data_offsets") ||
      !value["data_offsets"].is_array() || value["data_offsets"].size() != 2 ||
      !std::all_of(value["shape"].begin(), value["shape"].end(), is_whole) ||
      !std::all_of(value["data_offsets"].begin(), value["data_offsets"].end(), is_whole)) {
    return std::nullopt;
  }
  return Place{value["dtype"].get<std::string>(), value["shape"].get<std::vector<int64_t>>(),
               value["data_offsets"][0].get<uint64_t>(), value["data_offsets"][1].get<uint64_t>()};
}

/// Bytes of a shape; nothing where they are beyond any file.
std::optional<uint64_t> bytes_of(const std::vector<int64_t>& shape, uint64_t element) {
  uint64_t bytes = element;
  for (const int64_t size : shape) {
    const auto count = static_cast<uint64_t>(size);
    if (count > 0 && bytes > (uint64_t{1} << 62) / count) return std::nullopt;
    bytes *= count;
  }
  return bytes;
}

std::map<std::string, std::string> texts_of(const std::filesystem::path& path, const json& value) {
  std::map<std::string, std::string> texts;
  if (!value.is_object()) fail(path, "the header's __metadata__ is no object of texts");
  for (const auto& [name, text] : value.items()) {
    if (!text.is_string()) fail(path, "the header's __metadata__ is no object of texts");
    texts[name] = text.get<std::string>();
  }
  return texts;
}

}  // namespace

Safetensors Safetensors::open(const std::filesystem::path& path) {
  const auto mapping = std::make_shared<Mapping>(path);
  uint64_t header = 0;
  if (mapping->size >= kPrefix) std::memcpy(&header, mapping->bytes, kPrefix);
  if (header == 0 || header > mapping->size - std::min(mapping->size, kPrefix)) {
    fail(path, "is no safetensors file, or cut short");
  }
  if (header > kMostHeader) {
    fail(path, fmt::format("has a header of {} bytes, at most {} is known", header, kMostHeader));
  }
  char* data = static_cast<char*>(mapping->bytes) + kPrefix + header;
  const uint64_t room = mapping->size - kPrefix - header;
  // JSON's readers keep the last of equal names, each its own way.
  std::vector<std::set<std::string>> open_objects;
  std::string twice;
  const auto watch = [&](int, json::parse_event_t event, const json& parsed) {
    if (event == json::parse_event_t::object_start) open_objects.emplace_back();
    if (event == json::parse_event_t::object_end) open_objects.pop_back();
    if (event == json::parse_event_t::key) {
      const auto name = parsed.get<std::string>();
      if (!open_objects.back().insert(name).second) twice = name;
    }
    return true;
  };
  const json head = json::parse(data - header, data, watch, /*allow_exceptions=*/false);
  if (!head.is_object()) fail(path, "its header is no JSON object");
  if (!twice.empty()) {
    fail(path, fmt::format("its header has the name '{}' twice", readable(twice)));
  }
  Safetensors result;
  std::vector<std::pair<uint64_t, uint64_t>> places;
  for (const auto& [name, value] : head.items()) {
    if (name == kMetadata) {
      result.metadata = texts_of(path, value);
      continue;
    }
    const auto place = place_of(value);
    if (!place || place->begin > place->end || place->end > room) {
      fail(path, fmt::format("the entry of '{}' does not lie within the file", readable(name)));
    }
    places.emplace_back(place->begin, place->end);
    Entry& entry = result.entries[name];
    entry.type = place->type;
    const auto* const known = std::find_if(
        kTypes.begin(), kTypes.end(), [&](const Type& type) { return place->type == type.name; });
    if (known == kTypes.end()) continue;
    const auto bytes = bytes_of(place->shape, at::elementSize(known->type));
    if (bytes != place->end - place->begin) {
      fail(path, fmt::format("'{}' has {} bytes, its shape [{}] of {} needs {}", readable(name),
                             place->end - place->begin, fmt::join(place->shape, ", "), place->type,
                             bytes ? std::to_string(*bytes) : "more than any file has"));
    }
    entry.tensor = at::from_blob(
        data + place->begin, place->shape, [mapping](void*) {}, at::TensorOptions(known->type));
  }
  std::sort(places.begin(), places.end());
  for (size_t i = 1; i < places.size(); ++i) {
    if (places[i].first < places[i - 1].second) fail(path, "has tensors that lie over each other");
  }
  return result;
}

void write_safetensors(const std::filesystem::path& path,
                       const std::map<std::string, std::string>& metadata,
                       const std::map<std::string, at::Tensor>& tensors) {
  json header = json::object();
  if (!metadata.empty()) header[kMetadata] = metadata;
  std::string data;
  for (const auto& [name, tensor] : tensors) {
    const at::Tensor flat = tensor.contiguous();
    const char* dtype = nullptr;
    for (const Type& type : kTypes) {
      if (type.type == flat.scalar_type()) dtype = type.name;
    }
    header[name] = {{"dtype", dtype},
                    {"shape", flat.sizes().vec()},
                    {"data_offsets", {data.size(), data.size() + flat.nbytes()}}};
    data.append(static_cast<const char*>(flat.const_data_ptr()), flat.nbytes());
  }
  std::string text = header.dump();
  text.append((kPrefix - text.size() % kPrefix) % kPrefix, ' ');
  const uint64_t size = text.size();
  make_folder_of(path);
  Replacement replacement(path);
  std::ofstream file(replacement.temp(), std::ios::binary);
  file.write(reinterpret_cast<const char*>(&size), kPrefix);
  file << text << data;
  file.close();
  if (!file) fail(path, "cannot be written");
  replacement.commit();
}

}  // namespace kvlab::data
