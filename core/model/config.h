#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "data/rope.h"

namespace kvlab::model {

/// What a Hugging Face folder's config.json says of a decoder of the Llama family.
struct Config {
  std::string type;  // model_type
  int64_t layers = 0;
  int64_t hidden = 0;
  int64_t intermediate = 0;  // width of the gated MLP
  int64_t vocabulary = 0;
  int64_t q_heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  double norm_eps = 0;
  bool tied = false;        // the output matrix is the embedding
  bool qkv_biases = false;  // of the projections to queries, keys and values
  bool o_bias = false;      // of the projection behind attention
  bool mlp_biases = false;
  bool qk_norms = false;  // RMS norms of each head's queries and keys before RoPE
  data::RopeSpec rope;
  int64_t max_positions = 0;     // what the model was made for, RoPE scaling included; 0: not said
  std::vector<int64_t> windows;  // one a layer: the last tokens that attention reads; 0 is all
};

/// Whether a sequence of so many tokens is longer than what the model was made for: a sentence.
std::optional<std::string> beyond_positions(const Config& config, int64_t tokens);

/// Reads config.json of a folder. Throws Error where it is missing or broken, names an architecture
/// other than llama, mistral, qwen2 or qwen3, or holds a key that would change the result and is
/// not known here: the message names it.
Config read_config(const std::filesystem::path& folder);

/// The same from JSON; `file` is for messages.
Config parse_config(const nlohmann::json& json, const std::string& file);

}  // namespace kvlab::model
