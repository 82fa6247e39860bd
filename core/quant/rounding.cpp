#include "quant/rounding.h"

#include <limits>

namespace kvlab::quant {

at::ScalarType scalar_type(DType type) {
  switch (type) {
    case DType::fp32:
      return at::kFloat;
    case DType::fp16:
      return at::kHalf;
    case DType::bf16:
      return at::kBFloat16;
  }
  return at::kFloat;
}

DType float_type(const Settings& settings, const std::string& key) {
  const std::string name = get_text(settings, key);
  return name == "fp32" ? DType::fp32 : name == "fp16" ? DType::fp16 : DType::bf16;
}

double largest(DType type) {
  switch (type) {
    case DType::fp32:
      return std::numeric_limits<float>::max();
    case DType::fp16:
      return 65504.0;
    case DType::bf16:
      return 3.3895313892515355e38;
  }
  return std::numeric_limits<float>::max();
}

at::Tensor round_to(const at::Tensor& x, DType type) {
  const at::Tensor limited = x.clamp(-largest(type), largest(type));
  return type == DType::fp32 ? limited : limited.to(scalar_type(type)).to(at::kFloat);
}

}  // namespace kvlab::quant
