#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "calibrate/prepare.h"

/// One run of prepare: what its parts share, and what each of them makes.
namespace kvlab::calibrate {

enum class Which { key, value };

std::string name_of(Which which);

/// Whether a side is quantized before RoPE.
bool before_rope(const Settings& side);

struct Context {
  const method::Recipe& recipe;
  int64_t kv_heads, head_dim, layer, seed;
  const std::optional<CalibrationSample>& calibration;
  CalibrationStore& store;
  const Progress& progress;
  // Both sides need them, and neither is quick to make.
  mutable std::shared_ptr<const data::Sample> loaded = nullptr;
  mutable at::Tensor queries = {};
  mutable at::Tensor keys_before_rope = {};

  /// The calibration sample; `what` needs it. Throws Error where it is missing or does not fit.
  const data::Sample& sample(const std::string& what) const;

  /// The calibration tokens of a side in the space that it is quantized in, [B, Hkv, T, d].
  at::Tensor tokens(const Settings& side, Which which, const std::string& what) const;

  /// C_Q of the calibration sample, [Hkv, d, d].
  const at::Tensor& query_covariance() const;

  /// A name for tensors that follow from the calibration sample and these settings.
  std::string key(const nlohmann::json& what) const;
};

/// A tensor of a side's own, by way of the store.
template <class Make>
RotationSide stored_side(const Context& context, const nlohmann::json& what, Which which,
                         const Make& make) {
  const auto layer = context.store.get(context.key(what), context.layer, [&] {
    const RotationSide made = make();
    return which == Which::key ? RotationLayer{made, {}} : RotationLayer{{}, made};
  });
  return which == Which::key ? layer->key : layer->value;
}

/// Throws Error where what was learned holds NaN or infinite values: metrics would, without a
/// reason.
void require_finite(const at::Tensor& learned, const char* what, Which which, int64_t layer);

/// Centre, order, basis, rotation and token scale of a side. `result` gets what is stored of them
/// and their bytes, `prepared` notes and records.
transform::Transform transform_of(const Context& context, const Settings& side, Which which,
                                  PreparedSide& result, Prepared& prepared);

/// What the codec of a side is given, [Hkv, …], or undefined: thresholds, a codebook, the matrix of
/// a sketch, learned on calibration tokens as `result`'s transform makes them. Its bytes go to
/// `result`, notes to `prepared`.
at::Tensor shared_of(const Context& context, const Settings& side, Which which,
                     PreparedSide& result, Prepared& prepared);

}  // namespace kvlab::calibrate
