#pragma once

#include <cstdint>
#include <string>

namespace kvlab {

/// Storage types of captured tensors and of stored parameters.
enum class DType { fp32, fp16, bf16 };

/// Bytes of one element.
constexpr int64_t size_of(DType type) { return type == DType::fp32 ? 4 : 2; }

/// "fp32", "fp16" or "bf16": the names used in recipes and results.
inline std::string name_of(DType type) {
  switch (type) {
    case DType::fp32:
      return "fp32";
    case DType::fp16:
      return "fp16";
    case DType::bf16:
      return "bf16";
  }
  return "?";
}

}  // namespace kvlab
