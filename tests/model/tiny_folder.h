#pragma once

#include <ATen/ATen.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

/// A Hugging Face folder with a random model of a few thousand weights, removed at the end.
class TinyFolder {
 public:
  explicit TinyFolder(const nlohmann::json& changes = nlohmann::json::object()) {
    static int count = 0;
    path_ = std::filesystem::temp_directory_path() /
            ("kvlab_tiny_" + std::to_string(::getpid()) + "_" + std::to_string(count++));
    std::filesystem::create_directory(path_);
    config = {{"architectures", {"LlamaForCausalLM"}},
              {"model_type", "llama"},
              {"num_hidden_layers", 2},
              {"hidden_size", 32},
              {"intermediate_size", 48},
              {"num_attention_heads", 4},
              {"num_key_value_heads", 2},
              {"head_dim", 64},
              {"vocab_size", 60},
              {"rms_norm_eps", 1e-5},
              {"tie_word_embeddings", true}};
    config.update(changes);
    write_config();
    write_weights();
  }
  TinyFolder(const TinyFolder&) = delete;
  ~TinyFolder() { std::filesystem::remove_all(path_); }

  const std::filesystem::path& path() const { return path_; }

  void write_config() const { std::ofstream(path_ / "config.json") << config.dump(); }

  /// Plain float32 tensors, by the order of their names.
  static void write_safetensors(const std::filesystem::path& file,
                                const std::vector<std::pair<std::string, at::Tensor>>& tensors) {
    nlohmann::json header = {{"__metadata__", {{"format", "pt"}}}};
    std::string data;
    for (const auto& [name, tensor] : tensors) {
      const at::Tensor rows = tensor.contiguous();
      const std::string type = rows.scalar_type() == at::kFloat  ? "F32"
                               : rows.scalar_type() == at::kHalf ? "F16"
                               : rows.scalar_type() == at::kLong ? "I64"
                                                                 : "BF16";
      header[name] = {{"dtype", type},
                      {"shape", rows.sizes().vec()},
                      {"data_offsets", {data.size(), data.size() + rows.nbytes()}}};
      data.append(static_cast<const char*>(rows.const_data_ptr()), rows.nbytes());
    }
    const std::string text = header.dump();
    const uint64_t size = text.size();
    std::ofstream out(file, std::ios::binary);
    out.write(reinterpret_cast<const char*>(&size), sizeof size) << text << data;
  }

  nlohmann::json config;

 private:
  void write_weights() const {
    at::manual_seed(3);
    const auto of = [&](const char* key) { return config[key].get<int64_t>(); };
    const int64_t hidden = of("hidden_size"), wide = of("intermediate_size");
    const int64_t queries = of("num_attention_heads") * of("head_dim");
    const int64_t keys = of("num_key_value_heads") * of("head_dim");
    std::vector<std::pair<std::string, at::Tensor>> tensors;
    const auto matrix = [&](const std::string& name, int64_t out, int64_t in) {
      tensors.emplace_back(name, at::randn({out, in}) * 1.5 / std::sqrt(static_cast<double>(in)));
    };
    const auto norm = [&](const std::string& name) {
      tensors.emplace_back(name, 1 + at::randn({hidden}) * 0.3);
    };
    matrix("model.embed_tokens.weight", of("vocab_size"), hidden);
    for (int64_t i = 0; i < of("num_hidden_layers"); ++i) {
      const std::string prefix = "model.layers." + std::to_string(i) + ".";
      norm(prefix + "input_layernorm.weight");
      norm(prefix + "post_attention_layernorm.weight");
      matrix(prefix + "self_attn.q_proj.weight", queries, hidden);
      matrix(prefix + "self_attn.k_proj.weight", keys, hidden);
      matrix(prefix + "self_attn.v_proj.weight", keys, hidden);
      matrix(prefix + "self_attn.o_proj.weight", hidden, queries);
      matrix(prefix + "mlp.gate_proj.weight", wide, hidden);
      matrix(prefix + "mlp.up_proj.weight", wide, hidden);
      matrix(prefix + "mlp.down_proj.weight", hidden, wide);
    }
    norm("model.norm.weight");
    write_safetensors(path_ / "model.safetensors", tensors);
  }

  std::filesystem::path path_;
};

inline at::Tensor tiny_tokens(int64_t count) {
  at::manual_seed(11);
  return at::randint(60, {count}, at::kLong);
}
