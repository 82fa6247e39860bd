#include "metrics/norms.h"

#include <cmath>
#include <limits>

namespace kvlab::metrics {

at::Tensor norm_ratio(const at::Tensor& norms) {
  if (norms.size(-1) == 0) {
    std::vector<int64_t> sizes = norms.sizes().vec();
    sizes.pop_back();
    return at::full(sizes, std::numeric_limits<double>::quiet_NaN(), at::kDouble);
  }
  const auto range = norms.aminmax(-1);
  const at::Tensor least = std::get<0>(range);
  return (std::get<1>(range) / least)
      .masked_fill(least.eq(0), std::numeric_limits<double>::infinity());
}

Arrays norm_imbalance(const at::Tensor& norms) {
  const at::Tensor over_heads = norms.square().sum(1).sqrt();
  const at::Tensor mean = norms.mean(-1);
  const at::Tensor deviation = norms.std(-1, /*unbiased=*/false);
  return {{"tni_ratio", norm_ratio(norms).mean(0)},
          {"tni_ratio_heads", norm_ratio(over_heads).mean(0)},
          {"tni_cv", ratio(deviation, mean).mean(0)}};
}

Arrays block_imbalance(const at::Tensor& norms, const at::Tensor& errors, int64_t block,
                       int64_t bits) {
  const int64_t blocks = norms.size(-1) / block;
  if (blocks == 0) {
    const at::Tensor none =
        at::full({norms.size(1)}, std::numeric_limits<double>::quiet_NaN(), at::kDouble);
    return {{"tni_block_ratio", none}, {"tni_bound", none}, {"tni_block_mse", none}};
  }
  const auto cut = [&](const at::Tensor& x) {
    return x.narrow(-1, 0, blocks * block).unflatten(-1, {blocks, block});
  };
  const auto range = cut(norms).aminmax(-1);
  const at::Tensor gap = std::get<1>(range) - std::get<0>(range);
  const double steps = std::pow(2.0, static_cast<double>(bits)) - 1.0;
  return {{"tni_block_ratio", norm_ratio(cut(norms)).mean(kSequenceAndToken)},
          {"tni_bound", (gap.square() / (12.0 * steps * steps)).mean(kSequenceAndToken)},
          {"tni_block_mse", cut(errors).mean(-1).mean(kSequenceAndToken)}};
}

}  // namespace kvlab::metrics
