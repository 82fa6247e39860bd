#include "transform/reorder.h"

#include <array>

namespace kvlab::transform {

at::Tensor channel_order(const at::Tensor& x) {
  return x.to(at::kDouble)
      .sum(std::array<int64_t, 2>{0, 2})
      .reshape({-1})
      .argsort(/*stable=*/true, 0);
}

at::Tensor reorder(const at::Tensor& x, const at::Tensor& order) {
  // [B, H, n, d] → [B, H·d, n], where a channel is a row.
  const at::Tensor rows = x.transpose(2, 3).reshape({x.size(0), -1, x.size(2)});
  return rows.index_select(1, order)
      .reshape({x.size(0), x.size(1), x.size(3), x.size(2)})
      .transpose(2, 3)
      .contiguous();
}

at::Tensor undo_reorder(const at::Tensor& y, const at::Tensor& order) {
  return reorder(y, order.argsort());
}

}  // namespace kvlab::transform
