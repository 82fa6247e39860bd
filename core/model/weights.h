#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "data/safetensors.h"

namespace kvlab::model {

/// The tensors of a Hugging Face folder: of the files that its index names, else of all
/// *.safetensors.
class Weights {
 public:
  /// Throws Error where there are none, the index is broken or names a file that is not there, a
  /// file is broken, or a name stands in two of them.
  explicit Weights(const std::filesystem::path& folder);

  const std::filesystem::path& folder() const { return folder_; }
  bool has(const std::string& name) const { return entries_.contains(name); }

  /// The tensor, float32, float16 or bfloat16, its memory that of the file; it keeps the file
  /// mapped. Throws Error where it is missing, has another type or another shape.
  at::Tensor get(const std::string& name, const std::vector<int64_t>& shape) const;

  std::vector<std::string> names() const;

  /// SHA-256 over the names, sizes and bytes of the files.
  std::string content() const;

 private:
  std::filesystem::path folder_;
  std::vector<std::filesystem::path> files_;
  std::map<std::string, data::Safetensors::Entry> entries_;
};

}  // namespace kvlab::model
