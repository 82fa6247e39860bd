#include "transform/token_hadamard.h"

#include "transform/transform.h"

namespace kvlab::transform {

at::Tensor rotate_tokens(const at::Tensor& x, int64_t block) {
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes.insert(sizes.end() - 1, block);
  sizes[sizes.size() - 3] /= block;
  return hadamard(block).to(x.scalar_type()).matmul(x.reshape(sizes)).reshape(x.sizes());
}

}  // namespace kvlab::transform
