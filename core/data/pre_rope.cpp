#include "data/pre_rope.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"

namespace kvlab::data {
namespace {

/// How far k and RoPE(k_pre) may be apart, as a share of the largest key.
double tolerance(DType type) {
  switch (type) {
    case DType::fp32:
      return 1e-4;
    case DType::fp16:
      return 1.0 / 512;
    case DType::bf16:
      return 1.0 / 64;
  }
  return 0.0;
}

void check(const Sample& sample, const PreRope& found) {
  double largest = 0.0;
  double apart = 0.0;
  for (int64_t b = 0; b < sample.batch(); ++b) {
    for (int64_t head = 0; head < sample.kv_heads(); ++head) {
      const at::Tensor key = sample.k[b][head].to(at::kFloat);
      const at::Tensor turned = found.rope.turned(found.keys[b][head].to(at::kFloat));
      largest = std::max(largest, key.abs().max().item<double>());
      apart = std::max(apart, (turned - key).abs().max().item<double>());
    }
  }
  if (apart <= tolerance(sample.dtype) * largest) return;
  throw Error(fmt::format(
      "{}layer {}: RoPE turns k_pre into keys that are off k by up to {:.3g} (largest key {:.3g}): "
      "rope_theta, rope_scaling or rope_layout is wrong",
      sample.file.empty() ? "" : sample.file + ": ", sample.layer, apart, largest));
}

}  // namespace

PreRope keys_before_rope(const Sample& sample) {
  if (!sample.more.k_pre || !sample.more.rope) {
    throw Unsupported("the sample has no keys before RoPE");
  }
  PreRope found{sample.more.k_pre(), sample.more.rope()};
  check(sample, found);
  return found;
}

at::Tensor calibration_keys_before_rope(const Sample& sample) {
  try {
    return keys_before_rope(sample).keys;
  } catch (const Unsupported&) {
    if (!sample.more.rope) throw;
  }
  const Rope rope = sample.more.rope();
  return rope.turned_back(sample.k.to(at::kFloat));
}

}  // namespace kvlab::data
