#include "model/device.h"

#include "base/error.h"
#include "base/h5.h"
#include "catch.h"
#include "evaluate/passage.h"
#include "evaluate/score.h"
#include "metrics/cases.h"
#include "model/capture.h"
#include "model/tiny_folder.h"

namespace {

using namespace kvlab;

const at::Device kGpu(at::kCUDA);

/// Both evaluations of both prefills of a method, one after the other: NLL of each next token.
std::vector<at::Tensor> all_nll(const model::Decoder& decoder, const char* method) {
  const at::Tensor tokens = tiny_tokens(160);
  const evaluate::CacheUse use{.dtype = DType::fp32, .backend = "reference"};
  const auto methods = evaluate::on_all_layers(cases::recipe(method), decoder.config());
  const evaluate::Prompt half = evaluate::run_prompt(decoder, tokens.narrow(0, 0, 70), DType::fp32);
  std::vector<at::Tensor> nll;
  for (const evaluate::Prompt* prompt : {static_cast<const evaluate::Prompt*>(nullptr), &half}) {
    const at::Tensor rest = tokens.slice(0, prompt ? prompt->tokens : 0);
    for (const auto& run : {evaluate::teacher_forced, evaluate::decode}) {
      const at::Tensor states = run(decoder, methods, use, prompt, rest).states;
      CHECK(states.is_cpu());
      nll.push_back(evaluate::score(decoder, states, states, rest).nll);
    }
  }
  return nll;
}

/// Models of one window and of all tokens; the kernels of attention differ.
std::vector<nlohmann::json> kinds() {
  return {nlohmann::json::object(),
          {{"model_type", "mistral"},
           {"architectures", nlohmann::json::array({"MistralForCausalLM"})},
           {"sliding_window", 50}}};
}

}  // namespace

TEST_CASE("a device that is not here is refused in a sentence", "[model]") {
  CHECK_FALSE(model::missing_device(at::kCPU));
  const auto missing = model::missing_device(kGpu);
  if (!missing) return;  // a GPU is here
  CHECK_THAT(*missing, ContainsSubstring("device cuda is not available here: "));
  CHECK(missing->find('\n') == std::string::npos);
  const TinyFolder folder;
  CHECK_THROWS_AS(model::Decoder(folder.path(), {.type = at::kFloat, .device = kGpu}), Error);
}

TEST_CASE("a model predicts on the GPU what it predicts on the CPU", "[model][gpu]") {
  if (const auto missing = model::missing_device(kGpu)) {
    WARN("skipped: " << *missing);
    return;
  }
  for (const nlohmann::json& kind : kinds()) {
    CAPTURE(kind.dump());
    const TinyFolder folder(kind);
    const model::Decoder here(folder.path());
    const model::Decoder there(folder.path(), {.type = at::kFloat, .device = kGpu});
    // In float32 without codes, which a last bit may turn, the order of sums is all that differs.
    const auto expected = all_nll(here, "bf16");
    const auto found = all_nll(there, "bf16");
    for (size_t i = 0; i < expected.size(); ++i) {
      CAPTURE(i);
      CHECK((found[i] - expected[i]).abs().max().item<double>() < 1e-4);
    }
    // Codes on an edge may turn, but few do.
    const auto quantized = all_nll(here, "kivi");
    const auto quantized_there = all_nll(there, "kivi");
    for (size_t i = 0; i < quantized.size(); ++i) {
      CAPTURE(i);
      CHECK((quantized_there[i] - quantized[i]).abs().mean().item<double>() < 1e-2);
    }
  }
}

TEST_CASE("a model writes, answers and is captured on the GPU as on the CPU", "[model][gpu]") {
  if (const auto missing = model::missing_device(kGpu)) {
    WARN("skipped: " << *missing);
    return;
  }
  const TinyFolder folder;
  const at::Tensor tokens = tiny_tokens(60);
  const evaluate::CacheUse use{.dtype = DType::fp32, .backend = "reference"};
  std::vector<at::Tensor> written;
  std::vector<double> nll;
  std::vector<std::vector<float>> keys;
  for (const at::Device device : {at::Device(at::kCPU), kGpu}) {
    const model::Decoder decoder(folder.path(), {.type = at::kFloat, .device = device});
    const auto methods = evaluate::on_all_layers(cases::recipe("bf16"), decoder.config());
    const evaluate::Prompt prompt = evaluate::run_prompt(decoder, tokens, DType::fp32);
    written.push_back(evaluate::greedy(decoder, methods, use, prompt, 8).tokens);
    const at::Tensor answer = tiny_tokens(4);
    const auto states =
        evaluate::teacher_forced(decoder, methods, use, &prompt, answer.narrow(0, 0, 3)).states;
    nll.push_back(evaluate::answer(decoder, prompt, answer, states).nll);
    const auto file = folder.path() / (device.str() + ".h5");
    model::write_capture(decoder, at::stack({tokens, tokens.flip(0)}), {}, file, [](int64_t) {});
    keys.push_back(h5::File::open(file).read<float>("/layer_001/k"));
  }
  CHECK(written[0].equal(written[1]));
  CHECK(nll[0] == Approx(nll[1]).margin(1e-4));
  CHECK((at::tensor(keys[0]) - at::tensor(keys[1])).abs().max().item<double>() < 1e-4);
}

TEST_CASE("16-bit models on the GPU err as they do on the CPU", "[model][gpu]") {
  if (const auto missing = model::missing_device(kGpu)) {
    WARN("skipped: " << *missing);
    return;
  }
  const TinyFolder folder;
  const auto exact = all_nll(model::Decoder(folder.path()), "bf16");
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    CAPTURE(c10::toString(type));
    const auto here = all_nll(model::Decoder(folder.path(), {.type = type}), "bf16");
    const auto there =
        all_nll(model::Decoder(folder.path(), {.type = type, .device = kGpu}), "bf16");
    for (size_t i = 0; i < exact.size(); ++i) {
      CAPTURE(i);
      const auto error = [&](const at::Tensor& x) {
        return (x - exact[i]).square().mean().sqrt().item<double>();
      };
      CHECK(error(there[i]) < 2 * error(here[i]));
      CHECK(error(there[i]) > error(here[i]) / 2);
    }
  }
}
