#include "data/capture_file.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

namespace kvlab::data {

std::vector<uint16_t> half_bits(int64_t count) {
  std::vector<uint16_t> bits;
  for (int64_t i = 0; i < count; ++i) bits.push_back(c10::Half(TestCapture::fill(i)).x);
  return bits;
}

std::vector<uint16_t> bfloat_bits(int64_t count) {
  std::vector<uint16_t> bits;
  for (int64_t i = 0; i < count; ++i) bits.push_back(c10::BFloat16(TestCapture::fill(i)).x);
  return bits;
}

void TestCapture::write_tensor(h5::File& file, const std::string& name,
                               const std::vector<int64_t>& shape, DType type) {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  switch (type) {
    case DType::fp32: {
      std::vector<float> numbers;
      for (int64_t i = 0; i < count; ++i) numbers.push_back(fill(i));
      file.write(name, numbers.data(), shape);
      break;
    }
    case DType::fp16:
      file.write_float16(name, half_bits(count).data(), shape);
      break;
    case DType::bf16:
      file.write(name, bfloat_bits(count).data(), shape);
      file.set_attribute(name, "dtype", "bfloat16");
      break;
  }
}

}  // namespace kvlab::data
