#include "calibrate/prepare.h"

#include <fmt/format.h>

#include "base/code_version.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/names.h"
#include "calibrate/covariance.h"
#include "calibrate/preparation.h"
#include "data/pre_rope.h"
#include "quant/parts.h"

namespace kvlab::calibrate {
namespace {

PreparedSide prepare_side(const Context& context, Which which, Prepared& prepared) {
  const Settings side = context.recipe.side(name_of(which));
  const Settings codec = below(side, "codec.");
  PreparedSide result;
  result.passthrough = quant::is_passthrough(codec);
  if (result.passthrough) return result;

  result.pre_rope = before_rope(side);
  result.transform = transform_of(context, side, which, result, prepared);
  result.codec = quant::make_codec(codec, context.head_dim);
  result.shared_bytes += result.codec->shared_bytes();
  result.shared = shared_of(context, side, which, result, prepared);
  return result;
}

}  // namespace

std::string name_of(Which which) { return which == Which::key ? "key" : "value"; }

bool before_rope(const Settings& side) { return get_text(side, "space") == "pre_rope"; }

const data::Sample& Context::sample(const std::string& what) const {
  if (!calibration) throw Error(fmt::format("{} needs a calibration set", what));
  if (!loaded) loaded = calibration->load();
  if (loaded->kv_heads() != kv_heads || loaded->head_dim() != head_dim) {
    throw Error(fmt::format("the calibration set has {} of {}, the data {} of {}",
                            counted(loaded->kv_heads(), "KV head"),
                            counted(loaded->head_dim(), "channel"), kv_heads, head_dim));
  }
  return *loaded;
}

at::Tensor Context::tokens(const Settings& side, Which which, const std::string& what) const {
  const data::Sample& all = sample(what);
  if (which == Which::value) return all.v;
  if (!before_rope(side)) return all.k;
  if (!keys_before_rope.defined()) {
    keys_before_rope = data::calibration_keys_before_rope(all);
  }
  return keys_before_rope;
}

const at::Tensor& Context::query_covariance() const {
  if (!queries.defined()) queries = calibrate::query_covariance(sample("a covariance rotation"));
  return queries;
}

std::string Context::key(const nlohmann::json& what) const {
  const nlohmann::json all = {{"what", what},
                              {"calibration", calibration ? calibration->content : ""},
                              {"layer", layer},
                              {"code", code_version()}};
  return sha256(all.dump());
}

void require_finite(const at::Tensor& learned, const char* what, Which which, int64_t layer) {
  if (!learned.defined() || at::isfinite(learned).all().item<bool>()) return;
  throw Error(fmt::format(
      "layer {}: the calibration set gives {}s a {} with NaN or infinite values: are its queries, "
      "keys or values zeros alone?",
      layer, name_of(which), what));
}

Prepared prepare(const method::Recipe& recipe, int64_t kv_heads, int64_t head_dim, int64_t layer,
                 int64_t seed, const std::optional<CalibrationSample>& calibration,
                 CalibrationStore& store, const Progress& progress) {
  const Context context{recipe, kv_heads, head_dim, layer, seed, calibration, store, progress};
  Prepared prepared;
  prepared.key = prepare_side(context, Which::key, prepared);
  prepared.value = prepare_side(context, Which::value, prepared);
  return prepared;
}

}  // namespace kvlab::calibrate
