#include "model/config.h"

#include "base/error.h"
#include "catch.h"

using kvlab::data::RopeSpec;
using kvlab::model::Config;
using kvlab::model::parse_config;
using nlohmann::json;

namespace {

json standard(const std::string& type, const std::string& architecture) {
  return {{"architectures", {architecture}}, {"model_type", type},
          {"num_hidden_layers", 4},          {"hidden_size", 32},
          {"intermediate_size", 48},         {"num_attention_heads", 4},
          {"num_key_value_heads", 2},        {"vocab_size", 60},
          {"max_position_embeddings", 512}};
}

json llama() { return standard("llama", "LlamaForCausalLM"); }

std::string refusal(const json& object) {
  try {
    parse_config(object, "config.json");
  } catch (const kvlab::Error& error) {
    return error.what();
  }
  return "accepted";
}

json with(json object, const std::string& key, const json& value) {
  object[key] = value;
  return object;
}

}  // namespace

TEST_CASE("a model's config: what is missing follows from the rest", "[model]") {
  const Config config = parse_config(llama(), "config.json");
  CHECK(config.head_dim == 8);
  CHECK(config.kv_heads == 2);
  CHECK_FALSE(config.tied);
  CHECK(config.rope.kind == RopeSpec::Kind::plain);
  CHECK(config.rope.theta == 10000);
  CHECK(config.windows == std::vector<int64_t>{0, 0, 0, 0});

  json alone = llama();
  alone.erase("num_key_value_heads");
  CHECK(parse_config(alone, "config.json").kv_heads == 4);
}

TEST_CASE("a model's config: what is not supported is refused by its name", "[model]") {
  CHECK(refusal(with(llama(), "model_type", "gemma2")) ==
        "config.json: 'model_type' is 'gemma2', supported are llama, mistral, qwen2, qwen3");
  CHECK(refusal(with(llama(), "architectures", {"LlamaForSequenceClassification"})) ==
        "config.json: 'architectures' is [\"LlamaForSequenceClassification\"], expected "
        "[\"LlamaForCausalLM\"] for model type llama");
  CHECK(refusal(with(llama(), "attention_multiplier", 0.2)) ==
        "config.json: 'attention_multiplier' is not supported: this decoder does not know what it "
        "changes");
  CHECK(refusal(with(llama(), "attention_multiplier", nullptr)) == "accepted");
  CHECK(refusal(with(llama(), "hidden_act", "gelu")) ==
        "config.json: 'hidden_act' is 'gelu', supported is silu");
  CHECK(refusal(with(llama(), "rope_scaling", {{"rope_type", "dynamic"}, {"factor", 2.0}})) ==
        "config.json: 'rope_scaling.rope_type' is 'dynamic', supported are default, linear, "
        "llama3, yarn");
  CHECK(refusal(with(llama(), "rope_scaling", {{"type", "linear"}})) ==
        "config.json: 'rope_scaling.factor' is missing, expected a positive number");
  CHECK(refusal(with(llama(), "rope_parameters", {{"partial_rotary_factor", 0.5}})) ==
        "config.json: 'rope_parameters.partial_rotary_factor' is not 1: only whole heads are "
        "turned here");
  CHECK(refusal(with(llama(), "num_key_value_heads", 3)) ==
        "config.json: 'num_key_value_heads' is 3, expected a divisor of the 4 heads");
  CHECK(refusal(with(llama(), "num_hidden_layers", 10001)) ==
        "config.json: 'num_hidden_layers' is 10001, at most 10000 is known");
  CHECK(refusal(with(llama(), "head_dim", int64_t{1} << 32)) ==
        "config.json: 'head_dim' is 4294967296, at most 2147483647 is known");
  CHECK(refusal(with(llama(), "num_hidden_layers", "four")) ==
        "config.json: 'num_hidden_layers' is \"four\", expected a positive integer");
}

TEST_CASE("a model's config: what length it was made for, RoPE scaling included", "[model]") {
  const auto positions = [](const json& object) { return parse_config(object, "").max_positions; };
  CHECK(positions(llama()) == 512);
  CHECK(positions(with(llama(), "max_position_embeddings", nullptr)) == 0);
  CHECK(positions(with(llama(), "rope_scaling", {{"type", "linear"}, {"factor", 4.0}})) == 2048);
  json scaling = {{"rope_type", "yarn"}, {"factor", 4.0}};
  CHECK(positions(with(llama(), "rope_scaling", scaling)) == 2048);
  scaling["original_max_position_embeddings"] = 128;
  CHECK(positions(with(llama(), "rope_scaling", scaling)) == 512);

  using kvlab::model::beyond_positions;
  CHECK_FALSE(beyond_positions(parse_config(llama(), ""), 512));
  CHECK(beyond_positions(parse_config(llama(), ""), 513) ==
        "513 tokens are more than the 512 positions that the model was made for");
}

TEST_CASE("a model's config: sliding windows", "[model]") {
  const json mistral = with(standard("mistral", "MistralForCausalLM"), "sliding_window", 16);
  CHECK(parse_config(mistral, "").windows == std::vector<int64_t>{16, 16, 16, 16});
  CHECK(parse_config(with(mistral, "sliding_window", nullptr), "").windows ==
        std::vector<int64_t>{0, 0, 0, 0});

  json qwen = with(standard("qwen2", "Qwen2ForCausalLM"), "sliding_window", 16);
  qwen["max_window_layers"] = 2;
  CHECK(parse_config(qwen, "").windows == std::vector<int64_t>{0, 0, 0, 0});
  qwen["use_sliding_window"] = true;
  CHECK(parse_config(qwen, "").windows == std::vector<int64_t>{0, 0, 16, 16});
  qwen["layer_types"] = {"sliding_attention", "full_attention", "full_attention",
                         "sliding_attention"};
  CHECK(parse_config(qwen, "").windows == std::vector<int64_t>{16, 0, 0, 16});
}
