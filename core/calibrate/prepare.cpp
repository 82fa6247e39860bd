#include "calibrate/prepare.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/code_version.h"
#include "base/error.h"
#include "base/hash.h"
#include "calibrate/covariance.h"
#include "calibrate/heads.h"
#include "calibrate/sequences.h"
#include "quant/parts.h"

namespace kvlab::calibrate {
namespace {

enum class Which { key, value };

const at::Tensor& tensor_of(const data::Sample& sample, Which which) {
  return which == Which::key ? sample.k : sample.v;
}

/// What the parts of one preparation share.
struct Context {
  const method::Recipe& recipe;
  int64_t kv_heads, head_dim, layer, seed;
  const std::optional<CalibrationSample>& calibration;
  CalibrationStore& store;
  const Progress& progress;
  // Both sides need them, and neither is quick to make.
  mutable std::shared_ptr<const data::Sample> loaded = nullptr;
  mutable at::Tensor queries = {};

  const data::Sample& sample(const std::string& what) const {
    if (!calibration) throw Error(fmt::format("{} needs a calibration set", what));
    if (!loaded) loaded = calibration->load();
    if (loaded->kv_heads() != kv_heads || loaded->head_dim() != head_dim) {
      throw Error(
          fmt::format("the calibration set has {} KV heads of {} channels, the data {} of {}",
                      loaded->kv_heads(), loaded->head_dim(), kv_heads, head_dim));
    }
    return *loaded;
  }

  /// C_Q of the calibration sample, [Hkv, d, d].
  const at::Tensor& query_covariance() const {
    if (!queries.defined()) queries = calibrate::query_covariance(sample("a covariance rotation"));
    return queries;
  }

  /// A name for tensors that follow from the calibration sample and these settings.
  std::string key(const nlohmann::json& what) const {
    const nlohmann::json all = {{"what", what},
                                {"calibration", calibration ? calibration->content : ""},
                                {"layer", layer},
                                {"code", code_version()}};
    return sha256(all.dump());
  }
};

bool is_covariance(const std::string& rotate) { return rotate.starts_with("covariance"); }

at::Tensor layer_or_heads(const at::Tensor& covariance, const std::string& scope) {
  return scope == "layer" ? covariance.mean(0, true) : covariance;
}

/// U, U·H or U·H·P of a side, by way of the store.
at::Tensor covariance_rotation_of(const Context& context, const Settings& side, Which which,
                                  const std::string& kind) {
  const std::string form = get_text(side, "covariance");
  const std::string scope = get_text(side, "covariance_scope");
  const bool hadamard = kind == "covariance_hadamard";
  const bool reversal = hadamard && get_bool(side, "bit_reversal");
  const std::string name = which == Which::key ? "key" : "value";
  const nlohmann::json what = {{"rotation", kind},
                               {"side", name},
                               {"form", form},
                               {"scope", scope},
                               {"bit_reversal", reversal}};
  const auto layer = context.store.get(context.key(what), context.layer, [&] {
    const data::Sample& sample = context.sample("a covariance rotation");
    const at::Tensor covariance = which == Which::key ? context.query_covariance()
                                  : form == "code"
                                      ? proxy_covariance(sample, context.query_covariance())
                                      : output_covariance(sample);
    RotationSide made;
    made.rotation = covariance_rotation(layer_or_heads(covariance, scope), hadamard, reversal);
    return which == Which::key ? RotationLayer{made, {}} : RotationLayer{{}, made};
  });
  return (which == Which::key ? layer->key : layer->value).rotation;
}

at::Tensor center_of(const Context& context, const Settings& side, Which which) {
  if (get_text(side, "center") == "none") return {};
  const std::string name = which == Which::key ? "key" : "value";
  const auto layer = context.store.get(context.key({{"center", name}}), context.layer, [&] {
    const data::Sample& sample = context.sample("center: head_mean");
    RotationSide made;
    made.center = stack_heads(context.kv_heads, [&](int64_t head) {
      const at::Tensor x = tensor_of(sample, which).select(1, head).to(at::kDouble);
      return x.mean(std::array<int64_t, 2>{0, 1}).to(at::kFloat);
    });
    return which == Which::key ? RotationLayer{made, {}} : RotationLayer{{}, made};
  });
  return (which == Which::key ? layer->key : layer->value).center;
}

bool is_learned(const Settings& side) {
  return !quant::is_passthrough(below(side, "codec.")) && get_text(side, "rotate") == "learned";
}

at::Tensor learning_base(const Context& context, const Settings& side, Which which) {
  if (!is_learned(side)) return {};
  const std::string base = get_text(side, "learned_over");
  return base == "hadamard" ? transform::hadamard(context.head_dim).unsqueeze(0)
                            : covariance_rotation_of(context, side, which, base);
}

RotationSide rotation_side(const LearnedSide& learned) {
  if (!learned.rotation.defined()) return {};
  return {.rotation = learned.rotation,
          .center = {},
          .extra = {{"held_out_loss_base", learned.base_loss},
                    {"held_out_loss", learned.loss},
                    {"kept", learned.kept.to(at::kDouble)},
                    {"training_loss", learned.curve}}};
}

/// Learned rotations of both sides together: values are learned with the keys at their optimum.
std::shared_ptr<const RotationLayer> learned_layer(const Context& context) {
  const Settings key = context.recipe.side("key");
  const Settings value = context.recipe.side("value");
  const Settings calibrate = below(context.recipe.settings, "calibrate.");
  nlohmann::json what = {{"learn", calibrate}};
  for (const auto& [name, side] : {std::pair{"key", &key}, std::pair{"value", &value}}) {
    if (!is_learned(*side)) continue;
    for (const char* setting : {"learned_over", "covariance", "covariance_scope", "bit_reversal"}) {
      what[name][setting] = side->at(setting);
    }
  }
  what["center"] = is_learned(key) ? get_text(key, "center") : "none";
  return context.store.get(context.key(what), context.layer, [&] {
    const data::Sample& sample = context.sample("a learned rotation");
    const LearnSettings settings = LearnSettings::from(calibrate);
    LearnInput input = cut_sequences(sample, settings);
    if (is_learned(key)) input.center = center_of(context, key, Which::key);
    input.base_key = learning_base(context, key, Which::key);
    input.base_value = learning_base(context, value, Which::value);
    const Learned learned = learn(input, settings, context.progress);
    return RotationLayer{rotation_side(learned.key), rotation_side(learned.value)};
  });
}

struct Rotation {
  at::Tensor used;    // [1 or Hkv, d, d] or undefined
  bool keep = false;  // stored with the cell
};

Rotation rotation_of(const Context& context, const Settings& side, Which which,
                     Prepared& prepared) {
  const std::string rotate = get_text(side, "rotate");
  if (rotate == "none") return {};
  if (rotate == "hadamard") return {transform::hadamard(context.head_dim).unsqueeze(0), false};
  if (rotate == "random_orthogonal") {
    // Keys and values get matrices of their own.
    const int64_t stream = context.seed * 2 + (which == Which::key ? 0 : 1);
    return {transform::random_orthogonal(context.head_dim, stream).unsqueeze(0), true};
  }
  if (is_covariance(rotate)) return {covariance_rotation_of(context, side, which, rotate), true};
  if (rotate == "learned") {
    const auto layer = learned_layer(context);
    const RotationSide& learned = which == Which::key ? layer->key : layer->value;
    const std::string name = which == Which::key ? "key" : "value";
    for (const auto& [record, tensor] : learned.extra) {
      if (record == "training_loss") continue;
      const at::Tensor flat = tensor.to(at::kDouble).contiguous();
      prepared.records[name + "_" + record] = {flat.const_data_ptr<double>(),
                                               flat.const_data_ptr<double>() + flat.numel()};
    }
    return {learned.rotation, true};
  }
  throw Unsupported(fmt::format("rotation '{}' is unknown", rotate));
}

/// A file's rotation and, where it has one, centre.
void take_file(const Context& context, const std::string& path, Which which, at::Tensor& center,
               Rotation& rotation) {
  const RotationFile file = read_rotation_file(path);
  const auto found = file.layers.find(context.layer);
  if (found == file.layers.end()) {
    throw Error(fmt::format("{} has no layer {}", path, context.layer));
  }
  const RotationSide& side = which == Which::key ? found->second.key : found->second.value;
  if (!side.rotation.defined()) {
    throw Error(fmt::format("{} has no {} rotation for layer {}", path,
                            which == Which::key ? "key" : "value", context.layer));
  }
  const int64_t heads = side.rotation.size(0);
  if (side.rotation.size(1) != context.head_dim || (heads != 1 && heads != context.kv_heads)) {
    throw Error(
        fmt::format("{}: the rotation of layer {} is [{}], the data has {} KV heads of {} channels",
                    path, context.layer, fmt::join(side.rotation.sizes().vec(), ", "),
                    context.kv_heads, context.head_dim));
  }
  rotation = {side.rotation, true};
  if (!side.center.defined()) return;
  if (side.center.sizes() != at::IntArrayRef({context.kv_heads, context.head_dim})) {
    throw Error(
        fmt::format("{}: the centre of layer {} is [{}], the data has {} KV heads of {} channels",
                    path, context.layer, fmt::join(side.center.sizes().vec(), ", "),
                    context.kv_heads, context.head_dim));
  }
  center = side.center;
}

/// Ascending |x| over all calibration values of each KV head, as they enter the codec, at index
/// int(ratio·n): [Hkv].
at::Tensor calibrated_threshold(const Context& context, const PreparedSide& side, double ratio,
                                Which which) {
  const data::Sample& sample = context.sample("clip_source: calibrated");
  const at::Tensor& x = tensor_of(sample, which);
  const at::Tensor scales = side.transform.scales(x);
  return stack_heads(context.kv_heads, [&](int64_t head) {
    std::vector<at::Tensor> all;
    for (int64_t b = 0; b < x.size(0); ++b) {
      const at::Tensor scale =
          scales.defined() ? scales[b][scales.size(1) == 1 ? 0 : head] : at::Tensor();
      all.push_back(side.transform.forward(x[b][head], head, scale).abs().flatten());
    }
    const at::Tensor values = at::cat(all);
    const auto index = static_cast<int64_t>(ratio * static_cast<double>(values.numel()));
    return std::get<0>(at::kthvalue(values, index + 1));
  });
}

PreparedSide prepare_side(const Context& context, Which which, Prepared& prepared) {
  const Settings side = context.recipe.side(which == Which::key ? "key" : "value");
  const Settings codec = below(side, "codec.");
  PreparedSide result;
  result.passthrough = quant::is_passthrough(codec);
  if (result.passthrough) return result;

  at::Tensor center = center_of(context, side, which);
  Rotation rotation;
  const std::string rotate = get_text(side, "rotate");
  if (rotate.starts_with("file:")) {
    take_file(context, rotate.substr(5), which, center, rotation);
  } else {
    rotation = rotation_of(context, side, which, prepared);
  }
  result.transform = transform::Transform(center, rotation.used, transform::TokenScale::from(side));
  if (rotation.keep) result.stored_rotation = rotation.used;
  result.codec = quant::make_codec(codec, context.head_dim);
  if (quant::clip_is_calibrated(codec)) {
    result.threshold = calibrated_threshold(context, result, *quant::clip_ratio(codec), which);
  }
  return result;
}

}  // namespace

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
