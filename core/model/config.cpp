#include "model/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <set>

#include "base/error.h"
#include "base/names.h"

namespace kvlab::model {
namespace {

using nlohmann::json;

/// No product of two sizes overflows.
constexpr int64_t kMostOfAnything = std::numeric_limits<int32_t>::max();
constexpr int64_t kMostLayers = 10'000;

/// The keys of a JSON object, each read at most once by name; what nobody asked for is refused.
class Keys {
 public:
  Keys(const json& object, std::string file, std::string prefix = "")
      : object_(object), file_(std::move(file)), prefix_(std::move(prefix)) {}

  /// Nothing where the key is missing or null: both mean that the feature is off.
  const json* find(const std::string& key) {
    known_.insert(key);
    const auto found = object_.find(key);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }

  int64_t positive(const std::string& key) {
    const json* value = find(key);
    if (value == nullptr) refuse(key, "is missing, expected a positive integer");
    return positive(key, *value);
  }
  int64_t positive_or(const std::string& key, int64_t fallback) {
    const json* value = find(key);
    return value == nullptr ? fallback : positive(key, *value);
  }
  double number_or(const std::string& key, double fallback) {
    const json* value = find(key);
    if (value == nullptr) return fallback;
    if (!value->is_number() || !(value->get<double>() > 0)) {
      refuse(key, fmt::format("is {}, expected a positive number", value->dump()));
    }
    return value->get<double>();
  }
  double number(const std::string& key) {
    if (find(key) == nullptr) refuse(key, "is missing, expected a positive number");
    return number_or(key, 0);
  }
  bool flag_or(const std::string& key, bool fallback) {
    const json* value = find(key);
    if (value == nullptr) return fallback;
    if (!value->is_boolean()) {
      refuse(key, fmt::format("is {}, expected true or false", value->dump()));
    }
    return value->get<bool>();
  }
  std::string text_or(const std::string& key, const std::string& fallback) {
    const json* value = find(key);
    if (value == nullptr) return fallback;
    if (!value->is_string()) refuse(key, fmt::format("is {}, expected text", value->dump()));
    return value->get<std::string>();
  }

  /// Keys that change nothing of a forward in evaluation mode.
  void ignore(const std::vector<std::string>& keys) { known_.insert(keys.begin(), keys.end()); }

  void finish() const {
    for (const auto& [key, value] : object_.items()) {
      const bool is_note = key.starts_with("_") || key.ends_with("_token_id");
      if (known_.contains(key) || value.is_null() || is_note) continue;
      refuse(key, "is not supported: this decoder does not know what it changes");
    }
  }

  [[noreturn]] void refuse(const std::string& key, const std::string& what) const {
    throw Error(fmt::format("{}: '{}{}' {}", file_, prefix_, key, what));
  }

 private:
  int64_t positive(const std::string& key, const json& value) const {
    if (!value.is_number_integer() || value.get<int64_t>() < 1) {
      refuse(key, fmt::format("is {}, expected a positive integer", value.dump()));
    }
    if (value.get<int64_t>() > kMostOfAnything) {
      refuse(key, fmt::format("is {}, at most {} is known", value.dump(), kMostOfAnything));
    }
    return value.get<int64_t>();
  }

  const json& object_;
  std::string file_, prefix_;
  std::set<std::string> known_;
};

double yarn_attention_factor(Keys& keys, double factor) {
  const auto scale = [&](double m) { return factor <= 1 ? 1.0 : 0.1 * m * std::log(factor) + 1.0; };
  const double given = keys.number_or("attention_factor", 0);
  const double m = keys.number_or("mscale", 0);
  const double m_all = keys.number_or("mscale_all_dim", 0);
  if (given > 0) return given;
  return m > 0 && m_all > 0 ? scale(m) / scale(m_all) : scale(1);
}

data::RopeSpec read_rope(Keys& config, const std::string& file, int64_t max_positions) {
  const std::vector<std::string> kinds = {"default", "linear", "llama3", "yarn"};
  data::RopeSpec rope;
  rope.theta = config.number_or("rope_theta", rope.theta);
  const json* scaling = config.find("rope_scaling");
  const json* parameters = config.find("rope_parameters");
  const std::string name = parameters != nullptr ? "rope_parameters" : "rope_scaling";
  if (parameters == nullptr) parameters = scaling;
  if (parameters == nullptr) return rope;
  if (!parameters->is_object()) {
    config.refuse(name, fmt::format("is {}, expected a map", parameters->dump()));
  }
  Keys keys(*parameters, file, name + ".");
  rope.theta = keys.number_or("rope_theta", rope.theta);
  if (keys.number_or("partial_rotary_factor", 1) != 1) {
    keys.refuse("partial_rotary_factor", "is not 1: only whole heads are turned here");
  }
  const std::string older = keys.text_or("type", "default");
  const std::string kind = keys.text_or("rope_type", older);
  if (kind == "linear") {
    rope.kind = data::RopeSpec::Kind::linear;
    rope.factor = keys.number("factor");
  } else if (kind == "llama3") {
    rope.kind = data::RopeSpec::Kind::llama3;
    rope.factor = keys.number("factor");
    rope.low_factor = keys.number("low_freq_factor");
    rope.high_factor = keys.number("high_freq_factor");
    rope.original_positions = keys.number("original_max_position_embeddings");
  } else if (kind == "yarn") {
    rope.kind = data::RopeSpec::Kind::yarn;
    rope.original_positions =
        keys.number_or("original_max_position_embeddings", static_cast<double>(max_positions));
    rope.factor =
        keys.number_or("factor", static_cast<double>(max_positions) / rope.original_positions);
    rope.beta_fast = keys.number_or("beta_fast", rope.beta_fast);
    rope.beta_slow = keys.number_or("beta_slow", rope.beta_slow);
    rope.attention_factor = yarn_attention_factor(keys, rope.factor);
    rope.truncate = keys.flag_or("truncate", true);
  } else if (kind != "default") {
    keys.refuse("rope_type", fmt::format("is '{}'{}, supported are {}", kind,
                                         did_you_mean(kind, kinds), join(kinds)));
  }
  keys.finish();
  return rope;
}

/// Some configs say what the model was made for before its RoPE was scaled, others after it.
int64_t scaled_positions(int64_t stated, const data::RopeSpec& rope) {
  constexpr double kMost = 1e15;
  const double before =
      rope.original_positions > 0 ? rope.original_positions : static_cast<double>(stated);
  const double after = std::min(before * rope.factor, kMost);
  return stated == 0 ? 0 : std::max(stated, static_cast<int64_t>(after));
}

/// Which tokens each layer's attention reads. Mistral has one window for all layers; of Qwen's,
/// those from max_window_layers on have one, or those that layer_types names.
std::vector<int64_t> read_windows(Keys& keys, const Config& config) {
  const int64_t window = keys.positive_or("sliding_window", 0);
  const bool is_mistral = config.type == "mistral";
  const bool used = keys.flag_or("use_sliding_window", is_mistral);
  int64_t first = 0;
  if (const json* from = keys.find("max_window_layers")) {
    if (!from->is_number_integer()) {
      keys.refuse("max_window_layers", fmt::format("is {}, expected an integer", from->dump()));
    }
    first = from->get<int64_t>();
  }
  const json* types = keys.find("layer_types");
  std::vector<int64_t> windows(static_cast<size_t>(config.layers), 0);
  if (types != nullptr && (!types->is_array() || types->size() != windows.size())) {
    keys.refuse("layer_types", fmt::format("must list {}", counted(config.layers, "layer")));
  }
  for (size_t layer = 0; layer < windows.size(); ++layer) {
    bool slides = used && window > 0 && (is_mistral || static_cast<int64_t>(layer) >= first);
    if (types != nullptr) {
      const json& type = (*types)[layer];
      if (type != "full_attention" && type != "sliding_attention") {
        keys.refuse(
            "layer_types",
            fmt::format("has {}, supported are full_attention and sliding_attention", type.dump()));
      }
      slides = type == "sliding_attention";
      if (slides && window == 0) keys.refuse("sliding_window", "is missing, layer_types needs it");
    }
    if (slides) windows[layer] = window;
  }
  return windows;
}

/// "MistralForCausalLM" belongs to model type "mistral".
void check_architecture(Keys& keys, const std::string& type) {
  const std::vector<std::string> types = {"llama", "mistral", "qwen2", "qwen3"};
  const std::vector<std::string> classes = {"LlamaForCausalLM", "MistralForCausalLM",
                                            "Qwen2ForCausalLM", "Qwen3ForCausalLM"};
  const auto place = std::find(types.begin(), types.end(), type);
  if (place == types.end()) {
    keys.refuse("model_type", fmt::format("is '{}'{}, supported are {}", type,
                                          did_you_mean(type, types), join(types)));
  }
  const std::string& expected = classes[static_cast<size_t>(place - types.begin())];
  const json* architectures = keys.find("architectures");
  if (architectures != nullptr && *architectures != json::array({expected})) {
    keys.refuse("architectures", fmt::format("is {}, expected [\"{}\"] for model type {}",
                                             architectures->dump(), expected, type));
  }
}

}  // namespace

Config parse_config(const json& object, const std::string& file) {
  if (!object.is_object()) throw Error(fmt::format("{}: expected a JSON object", file));
  Keys keys(object, file);
  Config config;
  config.type = keys.text_or("model_type", "");
  check_architecture(keys, config.type);
  config.layers = keys.positive("num_hidden_layers");
  if (config.layers > kMostLayers) {
    keys.refuse("num_hidden_layers",
                fmt::format("is {}, at most {} is known", config.layers, kMostLayers));
  }
  config.hidden = keys.positive("hidden_size");
  config.intermediate = keys.positive("intermediate_size");
  config.vocabulary = keys.positive("vocab_size");
  config.q_heads = keys.positive("num_attention_heads");
  config.kv_heads = keys.positive_or("num_key_value_heads", config.q_heads);
  config.head_dim = keys.positive_or("head_dim", config.hidden / config.q_heads);
  if (config.q_heads % config.kv_heads != 0) {
    keys.refuse("num_key_value_heads",
                fmt::format("is {}, expected a divisor of the {}", config.kv_heads,
                            counted(config.q_heads, "head")));
  }
  if (config.head_dim % 2 != 0) {
    keys.refuse("head_dim", fmt::format("is {}, expected an even number", config.head_dim));
  }
  config.norm_eps = keys.number_or("rms_norm_eps", 1e-6);
  config.tied = keys.flag_or("tie_word_embeddings", false);
  config.qk_norms = config.type == "qwen3";
  // As transformers builds these four.
  const bool has_flag = config.type == "llama" || config.type == "qwen3";
  config.o_bias = has_flag && keys.flag_or("attention_bias", false);
  config.qkv_biases = config.o_bias || config.type == "qwen2";
  config.mlp_biases = config.type == "llama" && keys.flag_or("mlp_bias", false);
  config.max_positions = keys.positive_or("max_position_embeddings", 0);
  config.rope = read_rope(keys, file, config.max_positions > 0 ? config.max_positions : 2048);
  config.max_positions = scaled_positions(config.max_positions, config.rope);
  config.windows = read_windows(keys, config);
  const std::string activation = keys.text_or("hidden_act", "silu");
  if (activation != "silu") {
    keys.refuse("hidden_act", fmt::format("is '{}', supported is silu", activation));
  }
  if (keys.flag_or("rope_interleaved", false)) {
    keys.refuse("rope_interleaved", "is true: only halves are paired here");
  }
  keys.ignore({"attention_bias", "attention_dropout", "dtype", "initializer_range",
               "is_llama_config", "mlp_bias", "name_or_path", "pretraining_tp", "torch_dtype",
               "transformers_version", "transformers.js_config", "unsloth_fixed", "use_cache"});
  keys.finish();
  return config;
}

std::optional<std::string> beyond_positions(const Config& config, int64_t tokens) {
  if (config.max_positions == 0 || tokens <= config.max_positions) return std::nullopt;
  return fmt::format("{} are more than the {} that the model was made for",
                     counted(tokens, "token"), counted(config.max_positions, "position"));
}

Config read_config(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / "config.json";
  std::ifstream in(path);
  if (!in) {
    throw Error(fmt::format("{}: expected a Hugging Face folder with config.json and *.safetensors",
                            path.string()));
  }
  const json object = json::parse(in, nullptr, /*allow_exceptions=*/false);
  if (object.is_discarded()) throw Error(fmt::format("{}: is no JSON", path.string()));
  return parse_config(object, path.string());
}

}  // namespace kvlab::model
