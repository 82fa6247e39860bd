#pragma once

#include <ATen/ATen.h>

#include <filesystem>
#include <map>
#include <string>

/// One .safetensors file: an 8-byte little-endian size, a JSON header of names, types, shapes and
/// offsets, then the tensors' bytes.
namespace kvlab::calibrate::safetensors {

struct Contents {
  std::map<std::string, std::string> metadata;
  std::map<std::string, at::Tensor> tensors;  // float64, float32, float16, bfloat16 or int64
};

/// Throws Error with the file's name where it is no such file, is cut off or holds another type.
Contents read(const std::filesystem::path& path);

/// Writes in one step.
void write(const std::filesystem::path& path, const Contents& contents);

}  // namespace kvlab::calibrate::safetensors
