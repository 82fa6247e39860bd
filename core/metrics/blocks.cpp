#include "metrics/blocks.h"

#include <tuple>

namespace kvlab::metrics {

at::Tensor block_sums(const at::Tensor& over, const at::Tensor& under,
                      const at::Tensor& positions) {
  const at::Tensor of_position = positions.div(kBlockPositions, "floor");
  const auto [blocks, index, counts] = at::unique_consecutive(of_position, /*return_inverse=*/true);
  const auto sums = [&, &blocks = blocks, &index = index](const at::Tensor& x) {
    const at::Tensor by_block =
        at::zeros({x.size(0), x.size(1), blocks.size(0)}, at::kDouble).index_add_(2, index, x);
    return by_block.transpose(0, 1).flatten(1);  // [H, B·blocks]
  };
  return at::stack({sums(over), sums(under)}, -1);
}

at::Tensor block_sums(const at::Tensor& values, int64_t first_position) {
  const at::Tensor one_head = values.to(at::kDouble).reshape({1, 1, -1});
  return block_sums(one_head, at::ones_like(one_head),
                    at::arange(first_position, first_position + values.numel(), at::kLong));
}

}  // namespace kvlab::metrics
