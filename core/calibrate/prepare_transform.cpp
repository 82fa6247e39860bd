// Centres, orders, bases and rotations of a recipe, made, learned or read.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "calibrate/basis.h"
#include "calibrate/covariance.h"
#include "calibrate/heads.h"
#include "calibrate/preparation.h"
#include "calibrate/sequences.h"
#include "quant/parts.h"
#include "quant/rounding.h"
#include "transform/head_hadamard.h"
#include "transform/parts.h"
#include "transform/reorder.h"

namespace kvlab::calibrate {
namespace {

/// U·H·P, or U·H without bit reversal.
std::string hadamard_factors(const Settings& side) {
  return get_bool(side, "bit_reversal") ? "uhp" : "uh";
}

at::Tensor layer_or_heads(const at::Tensor& covariance, const std::string& scope) {
  return scope == "layer" ? covariance.mean(0, true) : covariance;
}

/// A product of U (and H and P, see compose_rotation) of a side, by way of the store.
at::Tensor covariance_rotation_of(const Context& context, const Settings& side, Which which,
                                  const std::string& factors) {
  const std::string form = get_text(side, "covariance");
  const std::string scope = get_text(side, "covariance_scope");
  const std::string name = name_of(which);
  const nlohmann::json what = {
      {"rotation", factors}, {"side", name}, {"form", form}, {"scope", scope}};
  const auto layer = context.store.get(context.key(what), context.layer, [&] {
    const data::Sample& sample = context.sample("a covariance rotation");
    const at::Tensor covariance =
        form == "own"         ? own_covariance(which == Which::key ? sample.k : sample.v)
        : which == Which::key ? context.query_covariance()
        : form == "code"      ? proxy_covariance(sample, context.query_covariance())
                              : output_covariance(sample);
    RotationSide made;
    made.rotation = covariance_rotation(layer_or_heads(covariance, scope), factors);
    return which == Which::key ? RotationLayer{made, {}} : RotationLayer{{}, made};
  });
  return (which == Which::key ? layer->key : layer->value).rotation;
}

/// The mean token of each head, float64 [Hkv, d].
at::Tensor head_means(const at::Tensor& x) {
  return stack_heads(x.size(1), [&](int64_t head) {
    return x.select(1, head).to(at::kDouble).mean(std::array<int64_t, 2>{0, 1});
  });
}

at::Tensor center_of(const Context& context, const Settings& side, Which which) {
  if (get_text(side, "center") == "none") return {};
  const nlohmann::json what = {{"center", name_of(which)}, {"space", get_text(side, "space")}};
  return stored_side(context, what, which,
                     [&] {
                       RotationSide made;
                       const at::Tensor x = context.tokens(side, which, "center: head_mean");
                       made.center = head_means(x).to(at::kFloat);
                       return made;
                     })
      .center;
}

/// The order of all heads' channels, int64 [Hkv·d].
at::Tensor order_of(const Context& context, const Settings& side, Which which) {
  const std::string kind = get_text(side, "reorder");
  if (kind == "none") return {};
  const nlohmann::json what = {
      {"reorder", kind}, {"side", name_of(which)}, {"space", get_text(side, "space")}};
  return stored_side(
             context, what, which,
             [&] {
               const at::Tensor x = context.tokens(side, which, "reorder");
               RotationSide made;
               made.extra["order"] =
                   (kind == "sum"
                        ? transform::channel_order(x)
                        : transform::channel_order(
                              x.abs().amax(std::array<int64_t, 2>{0, 2}).unsqueeze(0).unsqueeze(2)))
                       .to(at::kDouble);
               return made;
             })
      .extra.at("order")
      .to(at::kLong);
}

/// Σ over the query heads of a KV head of W_O,jᵀ·W_O,j, [Hkv, d, d].
at::Tensor output_hessian(const data::Sample& sample) {
  if (!sample.w_o.defined()) {
    throw Unsupported("basis: balanced of values needs a calibration set with w_o");
  }
  const int64_t d = sample.head_dim();
  const at::Tensor heads = sample.w_o.to(at::kDouble)
                               .reshape({-1, sample.kv_heads(), sample.group(), d})
                               .permute({1, 2, 0, 3})
                               .reshape({sample.kv_heads(), -1, d});
  return heads.transpose(1, 2).matmul(heads);
}

/// Xᵀ·X/rows of each head's tokens less the centre, [Hkv, d, d].
at::Tensor second_moment(const at::Tensor& x, const at::Tensor& center) {
  std::vector<at::Tensor> moments;
  for (int64_t head = 0; head < x.size(1); ++head) {
    at::Tensor rows = x.select(1, head).to(at::kDouble).flatten(0, 1);
    if (center.defined()) rows = rows - center[head].to(at::kDouble);
    moments.push_back(rows.t().matmul(rows) / static_cast<double>(rows.size(0)));
  }
  return at::stack(moments);
}

Basis basis_of(const Context& context, const Settings& side, Which which,
               const at::Tensor& center) {
  const std::string kind = get_text(side, "basis");
  if (kind == "none") return {};
  nlohmann::json what = {
      {"basis", kind}, {"side", name_of(which)}, {"center", get_text(side, "center")}};
  const bool pca = kind == "query_pca";
  if (!pca) what["damping"] = side.at("basis_damping");
  const RotationSide made = stored_side(context, what, which, [&] {
    const data::Sample& sample = context.sample("basis: " + kind);
    const at::Tensor x = context.tokens(side, which, "basis");
    Basis basis;
    if (pca) {
      const at::Tensor mean = head_means(x);
      basis = query_pca(context.query_covariance(), second_moment(x, mean));
    } else {
      basis =
          balanced_basis(which == Which::key ? context.query_covariance() : output_hessian(sample),
                         second_moment(x, center), get_real(side, "basis_damping"));
    }
    RotationSide tensors;
    tensors.extra = {{"basis", basis.matrix}, {"basis_inverse", basis.inverse}};
    return tensors;
  });
  return {made.extra.at("basis"), made.extra.at("basis_inverse")};
}

bool is_learned(const Settings& side) {
  return !quant::is_passthrough(below(side, "codec.")) && get_text(side, "rotate") == "learned";
}

at::Tensor learning_base(const Context& context, const Settings& side, Which which) {
  if (!is_learned(side)) return {};
  const std::string base = get_text(side, "learned_over");
  return base == "hadamard"
             ? transform::hadamard(context.head_dim).unsqueeze(0)
             : covariance_rotation_of(context, side, which,
                                      base == "covariance" ? "u" : hadamard_factors(side));
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
    for (const char* setting :
         {"objective", "learned_over", "covariance", "covariance_scope", "bit_reversal"}) {
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
    input.key_by_variance = get_text(key, "objective") == "channel_variance";
    input.value_by_variance = get_text(value, "objective") == "channel_variance";
    const Learned learned = learn(input, settings, context.progress);
    return RotationLayer{rotation_side(learned.key), rotation_side(learned.value)};
  });
}

struct Rotation {
  at::Tensor used;    // [1 or Hkv, d, d] or undefined; of `heads` heads where it mixes them
  bool keep = false;  // stored with the cell
  int64_t heads = 1;
  int64_t bytes = 0;  // of what is not stored with the cell
};

/// How many heads one Hadamard matrix mixes here.
int64_t rotated_heads(const Context& context, const Settings& side, Prepared& prepared) {
  const int64_t asked = get_int(side, "rotate_heads");
  const int64_t heads = transform::heads_together(context.kv_heads, asked);
  if (heads != asked) {
    prepared.notes.push_back(fmt::format("rotate_heads {} is {} here: the data has {} KV heads",
                                         asked, heads, context.kv_heads));
  }
  return heads;
}

Rotation rotation_of(const Context& context, const Settings& side, Which which,
                     Prepared& prepared) {
  const std::string rotate = get_text(side, "rotate");
  if (rotate == "none") return {};
  // Keys and values get matrices of their own.
  const int64_t stream = context.seed * 2 + (which == Which::key ? 0 : 1);
  if (rotate == "hadamard") {
    const int64_t heads = rotated_heads(context, side, prepared);
    const int64_t size = heads * context.head_dim;
    return {transform::block_hadamard(size, get_int(side, "rotate_block")).unsqueeze(0), false,
            heads};
  }
  if (rotate == "signed_hadamard") {
    const int64_t heads = rotated_heads(context, side, prepared);
    const int64_t size = heads * context.head_dim;
    return {transform::signed_hadamard(size, stream, get_int(side, "rotate_block")).unsqueeze(0),
            false, heads, 2 * ((size + 7) / 8)};
  }
  if (rotate == "random_orthogonal") {
    const int64_t d = context.head_dim;
    const auto first =
        static_cast<int64_t>(get_real(side, "rotate_split") * static_cast<double>(d));
    const at::Tensor matrix = first > 0 && first < d
                                  ? transform::random_orthogonal_parts(d, first, stream)
                                  : transform::random_orthogonal(d, stream);
    return {matrix.unsqueeze(0), true};
  }
  if (rotate == "covariance") return {covariance_rotation_of(context, side, which, "u"), true};
  if (rotate == "covariance_hadamard") {
    const std::string named = transform::factors_of(get_text(side, "composition"));
    const std::string factors = named == "uhp" ? hadamard_factors(side) : named;
    return {covariance_rotation_of(context, side, which, factors), true};
  }
  if (rotate == "learned") {
    const auto layer = learned_layer(context);
    const RotationSide& learned = which == Which::key ? layer->key : layer->value;
    const std::string name = name_of(which);
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
               Rotation& rotation, std::vector<std::string>& notes) {
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
  notes.push_back(fmt::format("{}: the centre of {} is subtracted, whatever center says",
                              name_of(which), path));
  if (side.center.sizes() != at::IntArrayRef({context.kv_heads, context.head_dim})) {
    throw Error(
        fmt::format("{}: the centre of layer {} is [{}], the data has {} KV heads of {} channels",
                    path, context.layer, fmt::join(side.center.sizes().vec(), ", "),
                    context.kv_heads, context.head_dim));
  }
  center = side.center;
}

/// A matrix that was made or read, as the type that it is used in holds it.
void round_rotation(const Settings& side, Rotation& rotation) {
  const std::string type = get_text(side, "rotation_params");
  if (type == "fp64" || !rotation.keep) return;
  rotation.used =
      quant::round_to(rotation.used.to(at::kFloat), type == "fp32" ? DType::fp32 : DType::bf16)
          .to(at::kDouble);
}

/// Order, basis and rotation as one, and what they take.
transform::Linear linear_of(const Context& context, const Settings& side, Which which,
                            const at::Tensor& center, const Rotation& rotation,
                            PreparedSide& result) {
  transform::Linear linear{.order = order_of(context, side, which),
                           .matrix = rotation.used,
                           .inverse = {},
                           .heads = rotation.heads,
                           .all_heads = quant::spans_heads(below(side, "codec.")),
                           .mixed_tokens = get_int(side, "mix_tokens")};
  result.order = linear.order;
  if (linear.order.defined()) result.shared_bytes += linear.order.numel() * 4;
  result.shared_bytes += rotation.bytes;
  const Basis basis = basis_of(context, side, which, center);
  if (!basis.matrix.defined()) {
    if (!rotation.keep) return linear;
    result.stored_rotation = rotation.used;
    result.shared_bytes += rotation.used.numel() * 4;
    return linear;
  }
  linear.matrix = basis.matrix;
  linear.inverse = basis.inverse;
  if (rotation.used.defined()) {
    linear.matrix = basis.matrix.matmul(rotation.used);
    linear.inverse = rotation.used.transpose(1, 2).matmul(basis.inverse);
  }
  result.is_basis = true;
  result.stored_rotation = linear.matrix;
  // Keys go through one, queries or outputs through the other.
  result.shared_bytes += (linear.matrix.numel() + linear.inverse.numel()) * 4;
  return linear;
}

}  // namespace

transform::Transform transform_of(const Context& context, const Settings& side, Which which,
                                  PreparedSide& result, Prepared& prepared) {
  at::Tensor center = center_of(context, side, which);
  Rotation rotation;
  const std::string rotate = get_text(side, "rotate");
  if (rotate.starts_with("file:")) {
    take_file(context, rotate.substr(5), which, center, rotation, prepared.notes);
  } else {
    rotation = rotation_of(context, side, which, prepared);
  }
  if (method::is_used(context.recipe, name_of(which) + ".rotation_params")) {
    round_rotation(side, rotation);
  }
  const transform::Linear linear = linear_of(context, side, which, center, rotation, result);
  require_finite(center, "centre", which, context.layer);
  require_finite(linear.matrix, "rotation or basis", which, context.layer);
  require_finite(linear.inverse, "inverse basis", which, context.layer);
  return {center, linear, transform::TokenScale::from(side), context.kv_heads};
}

}  // namespace kvlab::calibrate
