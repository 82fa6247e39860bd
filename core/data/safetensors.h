#pragma once

#include <ATen/ATen.h>

#include <filesystem>
#include <map>
#include <string>

namespace kvlab::data {

/// One .safetensors file: an 8-byte little-endian size, a JSON header of names, types, shapes and
/// offsets, then the tensors' bytes. The file is mapped, not read: a tensor costs memory only where
/// it is touched.
struct Safetensors {
  struct Entry {
    std::string type;   // as the file names it: F64, F32, F16, BF16, I64 or another
    at::Tensor tensor;  // its memory is the file's, which it keeps mapped; undefined: another type
  };
  std::map<std::string, std::string> metadata;
  std::map<std::string, Entry> entries;

  /// Throws Error with the file's name where it is no such file, is cut short, or an entry is
  /// broken.
  static Safetensors open(const std::filesystem::path& path);
};

/// Writes float64, float32, float16, bfloat16 or int64 tensors in one step.
void write_safetensors(const std::filesystem::path& path,
                       const std::map<std::string, std::string>& metadata,
                       const std::map<std::string, at::Tensor>& tensors);

}  // namespace kvlab::data
