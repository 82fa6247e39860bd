#include "torch_attention.h"

#include <stdexcept>

#include "speed/torch_cuda/torch_attention.h"
#include "speed/torch_module.h"

namespace kvlab::bench {
bool has_torch_attention(std::string* why) {
  *why = speed::missing_torch_cuda();
  return why->empty();
}

std::vector<double> time_torch_attention(const std::string& kind, const AttentionShape& shape,
                                         int copies, int launches, int samples) {
  std::vector<double> nanoseconds(static_cast<size_t>(samples));
  const int sizes[] = {shape.batch, shape.tokens, shape.q_heads, shape.kv_heads, shape.dim};
  if (KVLAB_TORCH_CUDA(kvlab_torch_time)(kind.c_str(), sizes, copies, launches, samples,
                                         nanoseconds.data()) != 0) {
    throw std::runtime_error(KVLAB_TORCH_CUDA(kvlab_torch_error)());
  }
  return nanoseconds;
}

}  // namespace kvlab::bench
