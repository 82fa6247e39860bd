#include "model/decoder.h"

#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include <map>

#include "base/error.h"
#include "model/checkpoint.h"
#include "model/device.h"

namespace kvlab::model {
namespace {

/// A type as experiments name it.
const char* word_of(at::ScalarType type) {
  return type == at::kHalf ? "fp16" : type == at::kBFloat16 ? "bf16" : "float32";
}

/// Takes tensors out of the files and converts them.
class Loader {
 public:
  Loader(const std::filesystem::path& folder, const Config& config, const Decoder::Options& options)
      : files_(folder), shapes_(tensor_shapes(config)), options_(options) {
    check_weights(files_, config);
  }

  bool has(const std::string& name) const { return shapes_.contains(name); }

  at::Tensor get(const std::string& name) const {
    at::Tensor tensor = files_.get(name, shapes_.at(name)).to(options_.device, options_.type);
    if (!at::isfinite(tensor).all().item<bool>()) {
      throw Error(fmt::format("{}: '{}' holds numbers that are not finite as {}",
                              files_.folder().string(), name, word_of(options_.type)));
    }
    return tensor;
  }
  /// Undefined where the configuration has none.
  at::Tensor get_if_there(const std::string& name) const {
    return has(name) ? get(name) : at::Tensor();
  }

 private:
  Weights files_;
  std::map<std::string, std::vector<int64_t>> shapes_;
  Decoder::Options options_;
};

}  // namespace

Decoder::Decoder(const std::filesystem::path& folder, const Options& options)
    : config_(read_config(folder)), options_(options) {
  const c10::NoGradGuard no_grad;
  if (auto missing = missing_device(options.device)) throw Error(*missing);
  const Loader loader(folder, config_, options);
  embedding_ = loader.get("model.embed_tokens.weight");
  last_norm_ = loader.get("model.norm.weight");
  output_ = config_.tied ? embedding_ : loader.get("lm_head.weight");
  for (int64_t i = 0; i < config_.layers; ++i) {
    const std::string prefix = fmt::format("model.layers.{}.", i);
    const auto linear = [&](const std::string& name) {
      return Linear{loader.get(prefix + name + ".weight"),
                    loader.get_if_there(prefix + name + ".bias")};
    };
    Layer layer;
    layer.attention_norm = loader.get(prefix + "input_layernorm.weight");
    layer.mlp_norm = loader.get(prefix + "post_attention_layernorm.weight");
    layer.q_norm = loader.get_if_there(prefix + "self_attn.q_norm.weight");
    layer.k_norm = loader.get_if_there(prefix + "self_attn.k_norm.weight");
    layer.q = linear("self_attn.q_proj");
    layer.k = linear("self_attn.k_proj");
    layer.v = linear("self_attn.v_proj");
    layer.o = linear("self_attn.o_proj");
    layer.gate = linear("mlp.gate_proj");
    layer.up = linear("mlp.up_proj");
    layer.down = linear("mlp.down_proj");
    layers_.push_back(std::move(layer));
  }
  rope_ = data::Rope::of(config_.rope, config_.head_dim);
  rope_.frequencies = rope_.frequencies.to(options.device);
}

at::Tensor Decoder::norm(const at::Tensor& x, const at::Tensor& weight) const {
  const at::Tensor wide = x.to(at::kFloat);
  const at::Tensor scale = (wide.square().mean(-1, /*keepdim=*/true) + config_.norm_eps).rsqrt_();
  return (wide * scale).to(x.scalar_type()) * weight;
}

/// [n, H·d] to [H, n, d], normed where `weight` is there.
at::Tensor Decoder::heads(const at::Tensor& x, int64_t count, const at::Tensor& weight) const {
  const at::Tensor split = x.view({x.size(0), count, config_.head_dim});
  return (weight.defined() ? norm(split, weight) : split).transpose(0, 1).contiguous();
}

at::Tensor Decoder::embed(const at::Tensor& tokens) const {
  const c10::NoGradGuard no_grad;
  const bool fits = tokens.numel() == 0 || (tokens.min().item<int64_t>() >= 0 &&
                                            tokens.max().item<int64_t>() < config_.vocabulary);
  if (!fits) {
    throw Error(
        fmt::format("a token is outside the vocabulary of {}: the tokens are of another "
                    "tokenizer",
                    config_.vocabulary));
  }
  return embedding_.index_select(0, tokens.to(options_.device));
}

at::Tensor Decoder::layer(int64_t index, const at::Tensor& hidden, int64_t first,
                          const Attention& attention) const {
  const c10::NoGradGuard no_grad;
  const Layer& layer = layers_.at(static_cast<size_t>(index));
  const int64_t n = hidden.size(0);
  const at::Tensor entering = norm(hidden, layer.attention_norm);
  const data::Rope::Angles turn = rope_.angles(first, n);
  LayerInput input;
  input.layer = index;
  input.first = first;
  input.window = config_.windows[static_cast<size_t>(index)];
  input.q = rope_.turned(heads(layer.q(entering), config_.q_heads, layer.q_norm), turn);
  input.k_pre = heads(layer.k(entering), config_.kv_heads, layer.k_norm);
  input.k = rope_.turned(input.k_pre, turn);
  input.v = heads(layer.v(entering), config_.kv_heads, {});
  input.hidden = hidden;
  input.rope = &rope_;
  const at::Tensor attended = attention(input).transpose(0, 1).reshape({n, -1});
  const at::Tensor middle = hidden + layer.o(attended);
  const at::Tensor x = norm(middle, layer.mlp_norm);
  return middle + layer.down(at::silu(layer.gate(x)).mul_(layer.up(x)));
}

at::Tensor Decoder::forward(const at::Tensor& tokens, int64_t first,
                            const Attention& attention) const {
  at::Tensor hidden = embed(tokens);
  for (int64_t i = 0; i < config_.layers; ++i) hidden = layer(i, hidden, first, attention);
  at::Tensor states = finish(hidden);
  if (!states.isfinite().all().item<bool>()) {
    throw Error(fmt::format("what leaves layer {} is not finite", config_.layers - 1));
  }
  return states;
}

at::Tensor Decoder::finish(const at::Tensor& hidden) const {
  const c10::NoGradGuard no_grad;
  return norm(hidden, last_norm_);
}

at::Tensor Decoder::logits(const at::Tensor& finished) const {
  const c10::NoGradGuard no_grad;
  return finished.to(options_.device).matmul(output_.t()).to(at::kFloat);
}

const at::Tensor& Decoder::output_matrix(int64_t layer) const {
  return layers_.at(static_cast<size_t>(layer)).o.weight;
}

at::Tensor exact_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                           int64_t window) {
  const c10::NoGradGuard no_grad;
  const int64_t n = q.size(1);
  const int64_t tokens = k.size(1);
  const bool whole = n == tokens && (window == 0 || window >= tokens);
  const bool last_alone = n == 1 && (window == 0 || window >= tokens);
  std::optional<at::Tensor> mask;
  if (!whole && !last_alone) {
    const at::Tensor own =
        at::arange(tokens - n, tokens, q.options().dtype(at::kLong)).unsqueeze(1);
    const at::Tensor other = at::arange(tokens, q.options().dtype(at::kLong)).unsqueeze(0);
    mask = other.le(own);
    if (window > 0) mask = mask->logical_and(other.gt(own - window));
    mask = mask->unsqueeze(0).unsqueeze(0);
  }
  // On a GPU the kernel that takes float32 without holding all logits has no grouped heads.
  const int64_t group = q.is_cuda() ? q.size(0) / k.size(0) : 1;
  const auto of_heads = [&](const at::Tensor& x) {
    return (group > 1 ? x.repeat_interleave(group, 0) : x).unsqueeze(0);
  };
  return at::scaled_dot_product_attention(q.unsqueeze(0), of_heads(k), of_heads(v), mask,
                                          /*dropout_p=*/0.0, /*is_causal=*/whole && n > 1,
                                          /*scale=*/std::nullopt, /*enable_gqa=*/true)
      .squeeze(0);
}

at::Tensor whole_attention(const LayerInput& input) {
  return exact_attention(input.q, input.k, input.v, input.window);
}

}  // namespace kvlab::model
