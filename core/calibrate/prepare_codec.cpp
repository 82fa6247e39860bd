// What codecs are given that calibration tokens, as they enter the codec, decide.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "calibrate/heads.h"
#include "calibrate/preparation.h"
#include "quant/codebook.h"
#include "quant/parts.h"
#include "transform/transform.h"

namespace kvlab::calibrate {
namespace {

/// Calibration tokens of all sequences, or what goes with them, float32 [Hkv, B·T, d]: `take` makes
/// it of one sequence's heads that are transformed together, [heads, T, d], given their token
/// scale.
template <class Take>
at::Tensor over_heads(const PreparedSide& side, const at::Tensor& tokens, const Take& take) {
  const int64_t length = tokens.size(2);
  const int64_t together = side.transform.heads();
  const at::Tensor scales = side.transform.scales(tokens);
  at::Tensor all = at::empty({tokens.size(1), tokens.size(0) * length, tokens.size(3)}, at::kFloat);
  for (int64_t first = 0; first < tokens.size(1); first += together) {
    for (int64_t b = 0; b < tokens.size(0); ++b) {
      at::Tensor scale;
      if (scales.defined()) {
        scale = scales.size(1) == 1 ? scales[b] : scales[b].narrow(0, first, together);
      }
      all.narrow(0, first, together)
          .narrow(1, b * length, length)
          .copy_(take(b, first, together, scale));
    }
  }
  return all;
}

/// All calibration values of each KV head as they enter the codec, float32 [Hkv, rows, d].
at::Tensor entering_values(const Context& context, const PreparedSide& side,
                           const Settings& settings, Which which, const std::string& what) {
  const at::Tensor x = context.tokens(settings, which, what);
  return over_heads(side, x, [&](int64_t b, int64_t first, int64_t heads, const at::Tensor& scale) {
    return side.transform.forward(x[b].narrow(0, first, heads), first, scale);
  });
}

/// The squared loss gradients of these values, likewise, but for a factor: a power of two that
/// keeps squares of the largest and the smallest gradients within float32. Undefined where the set
/// has none.
at::Tensor loss_weights(const Context& context, const PreparedSide& side, const Settings& settings,
                        Which which) {
  const data::Sample& sample = context.sample("weights of the loss");
  const auto& read = which == Which::key ? sample.more.grad_k : sample.more.grad_v;
  if (!read) return {};
  at::Tensor gradient;
  try {
    gradient = read();
  } catch (const Unsupported&) {
    return {};
  }
  gradient = gradient.to(at::kFloat);
  const auto largest = gradient.abs().max().item<double>();
  constexpr int kMost = 126;  // so that the factor is a float32
  if (largest > 0) gradient = gradient * std::exp2(-std::clamp(std::ilogb(largest), -kMost, kMost));
  const at::Tensor tokens = context.tokens(settings, which, "weights of the loss");
  // RoPE is a rotation: the gradient before it is the one after it, turned back.
  if (before_rope(settings)) gradient = sample.more.rope().turned_back(gradient);
  return over_heads(
      side, tokens, [&](int64_t b, int64_t first, int64_t heads, const at::Tensor& scale) {
        return side.transform.gradient(gradient[b].narrow(0, first, heads), first, scale).square_();
      });
}

/// Ascending |x| over all calibration values of each KV head, as they enter the codec, at index
/// int(ratio·n): [Hkv].
at::Tensor calibrated_threshold(const Context& context, const PreparedSide& side,
                                const Settings& settings, double ratio, Which which) {
  const at::Tensor entering =
      entering_values(context, side, settings, which, "clip_source: calibrated");
  return stack_heads(context.kv_heads, [&](int64_t head) {
    const at::Tensor values = entering[head].abs().flatten();
    const auto index = static_cast<int64_t>(ratio * static_cast<double>(values.numel()));
    return std::get<0>(at::kthvalue(values, index + 1));
  });
}

/// What a codec learned on the calibration sample, by way of the store.
at::Tensor codebook_of(const Context& context, const Settings& side, Which which,
                       const PreparedSide& made, Prepared& prepared) {
  const std::string name = name_of(which);
  const Settings codec = below(side, "codec.");
  const nlohmann::json what = {{"codebook", name},
                               {"settings", side},
                               {"calibrate", below(context.recipe.settings, "calibrate.")},
                               {"seed", context.seed}};
  const RotationSide learned = stored_side(context, what, which, [&] {
    const at::Tensor weight =
        quant::weighs_values(codec) ? loss_weights(context, made, side, which) : at::Tensor();
    const at::Tensor x = entering_values(context, made, side, which, "a calibrated codebook");
    RotationSide tensors;
    tensors.extra["codebook"] = quant::learn_codebook(codec, x, weight, context.progress);
    // Of a codec that weighs values: 1 by gradients, 0 there are none, -1 they are zeros alone.
    const double weighted = !weight.defined() ? 0.0 : weight.any().item<bool>() ? 1.0 : -1.0;
    tensors.extra["weighted"] = at::full({1}, weighted, at::kDouble);
    return tensors;
  });
  const auto weighted = learned.extra.at("weighted").item<double>();
  if (quant::weighs_values(codec) && weighted <= 0.0) {
    const char* gradient = which == Which::key ? "grad_k" : "grad_v";
    prepared.notes.push_back(
        weighted == 0.0
            ? fmt::format("{}: k-means is unweighted, the calibration set has no {}", name,
                          gradient)
            : fmt::format("{}: k-means is unweighted, {} of the calibration set is zero", name,
                          gradient));
  }
  return learned.extra.at("codebook").to(at::kFloat);
}

/// The matrix of a sketch, the same for all heads; another one than the rotation's.
at::Tensor sketch_matrix(const Context& context, Which which) {
  constexpr int64_t kSketches = int64_t{1} << 40;
  const int64_t stream = kSketches + context.seed * 2 + (which == Which::key ? 0 : 1);
  return transform::random_orthogonal(context.head_dim, stream)
      .unsqueeze(0)
      .expand({context.kv_heads, -1, -1});
}

}  // namespace

at::Tensor shared_of(const Context& context, const Settings& side, Which which,
                     PreparedSide& result, Prepared& prepared) {
  const Settings codec = below(side, "codec.");
  at::Tensor shared;
  if (quant::clip_is_calibrated(codec)) {
    shared = calibrated_threshold(context, result, side, *quant::clip_ratio(codec), which);
  }
  if (quant::needs_sketch(codec)) {
    shared = sketch_matrix(context, which);
    result.shared_bytes += shared[0].numel() * 4;
  }
  if (quant::learns_codebook(codec)) {
    shared = codebook_of(context, side, which, result, prepared);
    result.shared_bytes += shared.numel() * 4;
  }
  require_finite(shared, "codebook or threshold", which, context.layer);
  return shared;
}

}  // namespace kvlab::calibrate
