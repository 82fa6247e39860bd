#include "model/weights.h"

#include <limits>

#include "base/error.h"
#include "catch.h"
#include "model/decoder.h"
#include "model/tiny_folder.h"

using kvlab::model::Decoder;
using kvlab::model::Weights;

namespace {

template <class Call>
std::string message(const TinyFolder& folder, Call call) {
  try {
    call();
  } catch (const kvlab::Error& error) {
    std::string text = error.what();
    const std::string path = folder.path().string();
    if (text.starts_with(path)) text.erase(0, path.size());
    return text;
  }
  return "accepted";
}

void write(const std::filesystem::path& file, const std::string& header, uint64_t size) {
  std::ofstream out(file, std::ios::binary);
  out.write(reinterpret_cast<const char*>(&size), sizeof size) << header << "12345678";
}

}  // namespace

TEST_CASE("safetensors: tensors of several files and types", "[model]") {
  const TinyFolder folder;
  const at::Tensor x = at::arange(6, at::kFloat).view({2, 3});
  TinyFolder::write_safetensors(
      folder.path() / "more.safetensors",
      {{"half", x.to(at::kHalf)}, {"brain", x.to(at::kBFloat16)}, {"whole", x.to(at::kLong)}});
  at::Tensor held;
  {
    const Weights files(folder.path());
    CHECK(files.get("half", {2, 3}).to(at::kFloat).equal(x));
    CHECK(files.get("model.norm.weight", {32}).scalar_type() == at::kFloat);
    held = files.get("brain", {2, 3});
    CHECK(message(folder, [&] { files.get("whole", {2, 3}); }) ==
          ": 'whole' is I64, expected F32, F16 or BF16");
    CHECK(message(folder, [&] { files.get("half", {3, 2}); }) ==
          ": 'half' is [2, 3], config.json says [3, 2]");
    CHECK(message(folder, [&] { files.get("hal", {3, 2}); }) ==
          ": the weights lack 'hal' (did you mean 'half'?)");
  }
  CHECK(held.to(at::kFloat).equal(x));  // the mapping lives as long as its tensors
}

TEST_CASE("safetensors: broken files are refused in a sentence", "[model]") {
  const TinyFolder folder;
  const auto file = folder.path() / "broken.safetensors";
  const auto open = [&] { Weights files(folder.path()); };
  std::ofstream(file) << "1234";
  CHECK(message(folder, open) == "/broken.safetensors: is no safetensors file, or cut short");
  write(file, "{}", 1000);
  CHECK(message(folder, open) == "/broken.safetensors: is no safetensors file, or cut short");
  write(file, "{]", 2);
  CHECK(message(folder, open) == "/broken.safetensors: its header is no JSON object");
  const std::string beyond = R"({"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}})";
  write(file, beyond, beyond.size());
  CHECK(message(folder, open) ==
        "/broken.safetensors: the entry of 'a' does not lie within the file");
  const std::string small = R"({"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 8]}})";
  write(file, small, small.size());
  CHECK(message(folder, open) ==
        "/broken.safetensors: 'a' has 8 bytes, its shape [4] of F32 needs 16");
}

TEST_CASE("safetensors: an index says which files are the model", "[model]") {
  const TinyFolder folder;
  TinyFolder::write_safetensors(folder.path() / "consolidated.safetensors",
                                {{"norm.weight", at::ones({4})}});
  CHECK_FALSE(Weights(folder.path()).has("norm.weight"));  // Mistral's own copy
  TinyFolder::write_safetensors(folder.path() / "more.safetensors", {{"x", at::ones({4})}});
  CHECK(Weights(folder.path()).has("x"));
  const auto index = folder.path() / "model.safetensors.index.json";
  const auto open = [&] { Weights files(folder.path()); };
  std::ofstream(index) << R"({"weight_map": {"model.norm.weight": "model.safetensors"}})";
  CHECK_FALSE(Weights(folder.path()).has("x"));
  std::ofstream(index) << R"({"weight_map": {"a": "../model.safetensors"}})";
  CHECK(message(folder, open) ==
        "/model.safetensors.index.json: 'a' is in \"../model.safetensors\", expected the name of a "
        "file beside it");
  std::ofstream(index) << R"({"weight_map": {"a": "model-00001.safetensors"}})";
  CHECK_THAT(message(folder, open), ContainsSubstring("model-00001.safetensors"));
  std::ofstream(index) << "[";
  CHECK(message(folder, open) ==
        "/model.safetensors.index.json: expected JSON with a 'weight_map'");
}

TEST_CASE("a decoder refuses weights that are not finite", "[model]") {
  const TinyFolder folder;
  const auto file = folder.path() / "model.safetensors";
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  for (const auto& [name, entry] : kvlab::data::Safetensors::open(file).entries) {
    tensors.emplace_back(name, entry.tensor.clone());
    if (name == "model.norm.weight") {
      tensors.back().second[3] = std::numeric_limits<float>::quiet_NaN();
    }
  }
  TinyFolder::write_safetensors(file, tensors);
  CHECK(message(folder, [&] { Decoder decoder(folder.path()); }) ==
        ": 'model.norm.weight' holds numbers that are not finite as float32");
}

TEST_CASE("a decoder takes biases where its configuration has them", "[model]") {
  const at::Tensor bias = at::ones({128});
  const auto name = "model.layers.0.self_attn.k_proj.bias";
  const TinyFolder folder;
  TinyFolder::write_safetensors(folder.path() / "more.safetensors", {{name, bias}});
  CHECK_THAT(message(folder, [&] { Decoder decoder(folder.path()); }),
             ContainsSubstring("k_proj.bias', which this decoder does not use"));
  const TinyFolder without(nlohmann::json{{"attention_bias", true}});
  CHECK_THAT(message(without, [&] { Decoder decoder(without.path()); }),
             ContainsSubstring("the weights lack 'model.layers.0.self_attn.k_proj.bias'"));
}

TEST_CASE("a decoder refuses weights that it would not use", "[model]") {
  const TinyFolder folder;
  const auto load = [&] { Decoder decoder(folder.path()); };
  CHECK(message(folder, load) == "accepted");
  TinyFolder::write_safetensors(folder.path() / "more.safetensors",
                                {{"model.layers.0.self_attn.sinks", at::ones({4})}});
  CHECK(message(folder, load) ==
        ": the weights hold 'model.layers.0.self_attn.sinks', which this decoder does not use");
}

TEST_CASE("a decoder: the steps of a sequence give what one pass gives", "[model]") {
  const TinyFolder folder;
  const Decoder decoder(folder.path());
  const at::Tensor tokens = tiny_tokens(12);
  const at::Tensor whole = decoder.forward(tokens, 0, kvlab::model::whole_attention);
  std::vector<at::Tensor> k(2), v(2), steps;
  for (int64_t p = 0; p < 12; ++p) {
    steps.push_back(
        decoder.forward(tokens.narrow(0, p, 1), p, [&](const kvlab::model::LayerInput& input) {
          const auto layer = static_cast<size_t>(input.layer);
          k[layer] = p == 0 ? input.k : at::cat({k[layer], input.k}, 1);
          v[layer] = p == 0 ? input.v : at::cat({v[layer], input.v}, 1);
          return kvlab::model::exact_attention(input.q, k[layer], v[layer], input.window);
        }));
  }
  CHECK(at::allclose(at::cat(steps), whole, 1e-4, 1e-5));
}

TEST_CASE("exact attention: a window is what a mask by hand gives", "[model]") {
  at::manual_seed(5);
  const at::Tensor q = at::randn({4, 9, 8}), k = at::randn({2, 9, 8}), v = at::randn({2, 9, 8});
  const at::Tensor got = kvlab::model::exact_attention(q, k, v, 3);
  for (int64_t head = 0; head < 4; ++head) {
    for (int64_t p = 0; p < 9; ++p) {
      const int64_t from = std::max<int64_t>(0, p - 2);
      const at::Tensor keys = k[head / 2].narrow(0, from, p + 1 - from);
      const at::Tensor weights = keys.matmul(q[head][p]).div(std::sqrt(8.0)).softmax(0);
      const at::Tensor expected = weights.matmul(v[head / 2].narrow(0, from, p + 1 - from));
      CHECK(at::allclose(got[head][p], expected, 1e-5, 1e-6));
    }
  }
}
