#pragma once

#include <ATen/ATen.h>

#include <string>

#include "method/recipe.h"
#include "peers/peer_case.h"
#include "quant/codec.h"

/// From a case's attributes to parts of a recipe, and what comes out of them.
namespace peers {

/// A recipe of defaults with edits; an edit that the recipe refuses is thrown. Keys are whole
/// ("key.codec.bits").
class Parts {
 public:
  Parts();
  Parts& set(const std::string& key, const nlohmann::json& value);
  const kvlab::method::Recipe& recipe() const { return recipe_; }
  kvlab::Settings codec(const std::string& side) const;

 private:
  kvlab::method::Recipe recipe_;
};

/// "channel" for the vectors' word "token" (the direction of a group) and the other way round.
std::string shared_axis(const std::string& group_runs_along);

/// Values as a 16-bit type holds them, float32.
at::Tensor rounded(const at::Tensor& x, const std::string& type);

/// `ulps` units in the last place of `type` at the magnitude of each element, float64.
at::Tensor ulp(const at::Tensor& x, const std::string& type, double ulps);

/// A uniform codec's work on x float32 [H, n, d], in the vectors' shapes: scale and zero are
/// [H, n/G, d] where groups run along tokens, else [H, n, d/G].
struct Quantized {
  at::Tensor codes, scale, zero, values;  // int64, float32, float32, float32
  kvlab::quant::Encoded encoded;
};
Quantized quantize(const kvlab::Settings& codec, const at::Tensor& x,
                   const at::Tensor& threshold = {});

/// Each group's number at all of its elements: [H, n/G, d] or [H, n, d/G] to [H, n, d].
at::Tensor spread(const at::Tensor& per_group, const at::Tensor& x);

/// Codes [..., n] of two bits as int32 words, 16 a word, first code in the low bits.
at::Tensor words(const at::Tensor& codes);

}  // namespace peers
