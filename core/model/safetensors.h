#pragma once

#include <ATen/ATen.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace kvlab::model {

/// The tensors of one or many .safetensors files: an 8-byte little-endian size, a JSON header of
/// names, types, shapes and offsets, then the bytes. Files are mapped, not read: a tensor costs
/// memory only where it is touched.
class Safetensors {
 public:
  /// All *.safetensors of a folder. Throws Error where there are none, a file is broken, or a name
  /// stands in two of them.
  explicit Safetensors(const std::filesystem::path& folder);

  bool has(const std::string& name) const { return tensors_.contains(name); }

  /// The tensor, float32, float16 or bfloat16, its memory that of the file; it keeps the file
  /// mapped. Throws Error where it is missing, has another type or another shape.
  at::Tensor get(const std::string& name, const std::vector<int64_t>& shape) const;

  std::vector<std::string> names() const;

  /// SHA-256 over the names, sizes and bytes of the files.
  std::string content() const;

 private:
  void add(const std::filesystem::path& file);

  std::filesystem::path folder_;
  std::vector<std::filesystem::path> files_;
  std::map<std::string, at::Tensor> tensors_;  // undefined: of a type that is not supported
  std::map<std::string, std::string> types_;
};

}  // namespace kvlab::model
