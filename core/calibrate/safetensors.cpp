#include "calibrate/safetensors.h"

#include <fmt/format.h>

#include <array>
#include <cstring>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/replacement.h"

namespace kvlab::calibrate::safetensors {
namespace {

using nlohmann::json;
constexpr size_t kSizeBytes = 8;
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

at::Tensor tensor_of(const std::filesystem::path& path, const std::string& name, const json& entry,
                     std::string_view data) {
  const auto wrong = [&](const std::string& what) { fail(path, "tensor '" + name + "' " + what); };
  const auto dtype = entry.value("dtype", std::string());
  const auto* const found = std::find_if(kTypes.begin(), kTypes.end(),
                                         [&](const Type& type) { return dtype == type.name; });
  if (found == kTypes.end()) wrong("has type " + dtype + ", expected F64, F32, F16, BF16 or I64");
  const auto shape = entry.at("shape").get<std::vector<int64_t>>();
  const auto offsets = entry.at("data_offsets").get<std::vector<uint64_t>>();
  if (offsets.size() != 2 || offsets[0] > offsets[1] || offsets[1] > data.size()) {
    wrong("lies outside the file");
  }
  const uint64_t held = (offsets[1] - offsets[0]) / c10::elementSize(found->type);
  uint64_t count = 1;
  for (const int64_t size : shape) {
    if (size < 0 || (size > 0 && count > held / static_cast<uint64_t>(size))) {
      wrong("has another size than its shape");
    }
    count *= static_cast<uint64_t>(size);
  }
  if (count * c10::elementSize(found->type) != offsets[1] - offsets[0]) {
    wrong("has another size than its shape");
  }
  at::Tensor tensor = at::empty(shape, found->type);
  std::memcpy(tensor.mutable_data_ptr(), data.data() + offsets[0], offsets[1] - offsets[0]);
  return tensor;
}

}  // namespace

Contents read(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) fail(path, "cannot be opened");
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  uint64_t header_size = 0;
  if (bytes.size() >= kSizeBytes) std::memcpy(&header_size, bytes.data(), kSizeBytes);
  if (header_size == 0 || header_size > bytes.size() - kSizeBytes) {
    fail(path, "is no .safetensors file, or is cut off");
  }
  const std::string_view all(bytes);
  const json header = json::parse(all.substr(kSizeBytes, header_size), nullptr, false);
  if (!header.is_object()) fail(path, "has a header that is no JSON object");
  Contents contents;
  try {
    for (const auto& [name, entry] : header.items()) {
      if (name == kMetadata) {
        contents.metadata = entry.get<std::map<std::string, std::string>>();
      } else {
        contents.tensors[name] = tensor_of(path, name, entry, all.substr(kSizeBytes + header_size));
      }
    }
  } catch (const json::exception&) {
    fail(path, "has a header that does not describe tensors");
  }
  return contents;
}

void write(const std::filesystem::path& path, const Contents& contents) {
  json header = json::object();
  if (!contents.metadata.empty()) header[kMetadata] = contents.metadata;
  std::string data;
  for (const auto& [name, tensor] : contents.tensors) {
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
  text.append((kSizeBytes - text.size() % kSizeBytes) % kSizeBytes, ' ');
  const uint64_t size = text.size();
  make_folder_of(path);
  Replacement replacement(path);
  std::ofstream file(replacement.temp(), std::ios::binary);
  file.write(reinterpret_cast<const char*>(&size), kSizeBytes);
  file << text << data;
  file.close();
  if (!file) fail(path, "cannot be written");
  replacement.commit();
}

}  // namespace kvlab::calibrate::safetensors
