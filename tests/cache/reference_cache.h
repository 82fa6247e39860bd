#pragma once

#include <ATen/ATen.h>

#include "attention/reference.h"
#include "cache/windows.h"
#include "calibrate/prepare.h"
#include "data/sample.h"
#include "method/recipe.h"

/// What the tensor form reads back of every step of a cache: the judge of the packed one.
namespace plain {

/// A method made ready for a sample; calibrated on the sample itself.
inline kvlab::calibrate::Prepared prepared(const kvlab::method::Recipe& recipe,
                                           const kvlab::data::Sample& sample) {
  kvlab::calibrate::CalibrationStore store{std::filesystem::path()};
  const auto shared = std::make_shared<const kvlab::data::Sample>(sample);
  const kvlab::calibrate::CalibrationSample calibration{[shared] { return shared; }, "itself"};
  return kvlab::calibrate::prepare(recipe, sample.kv_heads(), sample.head_dim(), 0, 0, calibration,
                                   store, {});
}

class ReferenceCache {
 public:
  using Side = kvlab::cache::Windows::Side;

  ReferenceCache(const kvlab::method::Recipe& recipe, const kvlab::calibrate::Prepared& method,
                 const kvlab::data::Sample& sample)
      : sample_(sample), windows_(recipe.settings, sample.tokens()) {
    k_ = decoded(method.key, sample.k);
    v_ = decoded(method.value, sample.v);
  }

  /// All tokens [B, Hkv, tokens, d] as read at the step of the last of them, float64.
  at::Tensor read(Side side, int64_t tokens) const {
    const bool keys = side == Side::key;
    at::Tensor all = (keys ? sample_.k : sample_.v).narrow(2, 0, tokens).to(at::kDouble).clone();
    const at::Tensor& history = keys ? k_ : v_;
    // A shorter cache than its sink has no history yet.
    const int64_t end = windows_.boundary(side, tokens - 1);
    if (!history.defined() || end <= windows_.begin()) return all;
    const int64_t n = end - windows_.begin();
    all.narrow(2, windows_.begin(), n).copy_(history.narrow(2, 0, n));
    return all;
  }

  /// Attention of q [Hq, d] of sequence b over a cache of `tokens` tokens: float64 [Hq, d].
  at::Tensor attend(const at::Tensor& q, int64_t b, int64_t tokens) const {
    const at::Tensor k = read(Side::key, tokens)[b];
    const at::Tensor v = read(Side::value, tokens)[b];
    std::vector<at::Tensor> rows;
    for (int64_t j = 0; j < q.size(0); ++j) {
      const int64_t head = j / sample_.group();
      rows.push_back(kvlab::attention::exact_attention(q[j].unsqueeze(0).to(at::kDouble), k[head],
                                                       v[head], at::tensor({tokens - 1}, at::kLong))
                         .output[0]);
    }
    return at::stack(rows);
  }

 private:
  /// The whole span of all heads, float64 [B, Hkv, n, d].
  at::Tensor decoded(const kvlab::calibrate::PreparedSide& side, const at::Tensor& x) const {
    if (side.passthrough) return {};
    const int64_t n = windows_.span_end() - windows_.begin();
    const at::Tensor span = x.narrow(2, windows_.begin(), n);
    const at::Tensor scales = side.transform.scales(span);
    at::Tensor result = at::empty(span.sizes(), at::kDouble);
    for (int64_t b = 0; b < x.size(0); ++b) {
      for (int64_t h = 0; h < x.size(1); ++h) {
        at::Tensor scale;
        if (scales.defined()) scale = scales[b][scales.size(1) == 1 ? 0 : h];
        at::Tensor threshold;
        if (side.shared.defined()) threshold = side.shared.narrow(0, h, 1);
        const at::Tensor y = side.transform.forward(span[b][h], h, scale);
        const at::Tensor back =
            side.codec->decode(side.codec->encode(y.unsqueeze(0), threshold))[0];
        result[b][h].copy_(side.transform.backward(back, h, scale));
      }
    }
    return result;
  }

  kvlab::data::Sample sample_;
  kvlab::cache::Windows windows_;
  at::Tensor k_, v_;
};

}  // namespace plain
