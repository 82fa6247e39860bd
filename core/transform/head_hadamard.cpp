#include "transform/head_hadamard.h"

#include "transform/transform.h"

namespace kvlab::transform {
namespace {

at::Tensor multiply(const at::Tensor& x, int64_t heads, const at::Tensor& matrix) {
  const int64_t batch = x.size(0), all = x.size(1), n = x.size(2), d = x.size(3);
  const at::Tensor rows = x.reshape({batch, all / heads, heads, n, d})
                              .transpose(2, 3)
                              .reshape({batch, all / heads, n, heads * d});
  return rows.matmul(matrix.to(x.scalar_type()))
      .reshape({batch, all / heads, n, heads, d})
      .transpose(2, 3)
      .reshape(x.sizes());
}

}  // namespace

int64_t heads_together(int64_t kv_heads, int64_t most) {
  int64_t heads = 1;
  while (2 * heads <= most && kv_heads % (2 * heads) == 0) heads *= 2;
  return heads;
}

at::Tensor rotate_heads(const at::Tensor& x, int64_t heads) {
  return multiply(x, heads, hadamard(heads * x.size(3)));
}

at::Tensor undo_rotate_heads(const at::Tensor& y, int64_t heads) {
  return multiply(y, heads, hadamard(heads * y.size(3)).t());
}

}  // namespace kvlab::transform
