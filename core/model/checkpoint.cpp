#include "model/checkpoint.h"

#include <fmt/format.h>

#include "base/error.h"

namespace kvlab::model {
namespace {

constexpr const char* kHead = "lm_head.weight";

}  // namespace

std::map<std::string, std::vector<int64_t>> tensor_shapes(const Config& config) {
  const int64_t hidden = config.hidden;
  const int64_t queries = config.q_heads * config.head_dim;
  const int64_t keys = config.kv_heads * config.head_dim;
  std::map<std::string, std::vector<int64_t>> shapes = {
      {"model.embed_tokens.weight", {config.vocabulary, hidden}}, {"model.norm.weight", {hidden}}};
  if (!config.tied) shapes[kHead] = {config.vocabulary, hidden};
  for (int64_t i = 0; i < config.layers; ++i) {
    const std::string prefix = fmt::format("model.layers.{}.", i);
    const auto linear = [&](const std::string& name, int64_t out, int64_t in, bool biased) {
      shapes[prefix + name + ".weight"] = {out, in};
      if (biased) shapes[prefix + name + ".bias"] = {out};
    };
    shapes[prefix + "input_layernorm.weight"] = {hidden};
    shapes[prefix + "post_attention_layernorm.weight"] = {hidden};
    if (config.qk_norms) {
      shapes[prefix + "self_attn.q_norm.weight"] = {config.head_dim};
      shapes[prefix + "self_attn.k_norm.weight"] = {config.head_dim};
    }
    linear("self_attn.q_proj", queries, hidden, config.qkv_biases);
    linear("self_attn.k_proj", keys, hidden, config.qkv_biases);
    linear("self_attn.v_proj", keys, hidden, config.qkv_biases);
    linear("self_attn.o_proj", hidden, queries, config.o_bias);
    linear("mlp.gate_proj", config.intermediate, hidden, config.mlp_biases);
    linear("mlp.up_proj", config.intermediate, hidden, config.mlp_biases);
    linear("mlp.down_proj", hidden, config.intermediate, config.mlp_biases);
  }
  return shapes;
}

void check_weights(const Weights& weights, const Config& config) {
  const auto shapes = tensor_shapes(config);
  for (const auto& [name, shape] : shapes) weights.get(name, shape);
  for (const std::string& name : weights.names()) {
    // A tied model's file may hold the matrix once more; its configuration decides. Old checkpoints
    // hold the frequencies, which follow from config.json.
    const bool is_spare = (config.tied && name == kHead) || name.ends_with("rotary_emb.inv_freq");
    if (is_spare || shapes.contains(name)) continue;
    throw Error(fmt::format("{}: the weights hold '{}', which this decoder does not use",
                            weights.folder().string(), name));
  }
}

}  // namespace kvlab::model
