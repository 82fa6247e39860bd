// A whole model on the CPU, beside its plain forward pass: operation `experiment`, names model_….

#include <benchmark/benchmark.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include <chrono>
#include <filesystem>
#include <memory>

#include "base/error.h"
#include "evaluate/passage.h"
#include "method/recipe.h"
#include "model/tokens_file.h"
#include "samples.h"

namespace kvlab::bench {
namespace {

constexpr int64_t kContext = 2048;
constexpr int64_t kDecoded = 512;

/// What datasets/README.md makes: the model of the demo, and passages of 2,048 tokens.
struct Input {
  model::Decoder decoder;
  at::Tensor tokens;  // int64 [passages, 2048]
};

Input read_input() {
  const std::filesystem::path root = KVLAB_SOURCE_DIR;
  Input input{model::Decoder(root / "models/smollm2"),
              model::read_tokens(root / "datasets/smollm2/eval.h5").tokens};
  if (input.tokens.size(0) < 2 || input.tokens.size(1) < kContext) {
    throw Error(fmt::format("eval.h5: expected two passages of {} tokens", kContext));
  }
  return input;
}

double seconds_of(const auto& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

void report(benchmark::State& state, double seconds) {
  keep_sample(1e9 * seconds);
  state.SetIterationTime(seconds);
}

/// One pass over a passage through a method's cache, and its share of the same pass without one;
/// the scores of both take the same and are left out.
void teacher_forced(benchmark::State& state, const std::string& method,
                    const std::string& backend) {
  const Input input = read_input();
  const at::Tensor tokens = input.tokens[0].slice(0, 0, kContext);
  const auto methods = evaluate::on_all_layers(method::preset(method), input.decoder.config());
  const auto plain = [&] { input.decoder.forward(tokens, 0, model::whole_attention); };
  const auto quantized = [&] {
    evaluate::teacher_forced(input.decoder, methods, {.backend = backend}, nullptr, tokens);
  };
  plain();
  for ([[maybe_unused]] auto _ : state) {
    const double forward = seconds_of(plain);
    const double seconds = seconds_of(quantized);
    report(state, seconds);
    state.counters["plain_seconds"] = forward;
    state.counters["over_plain"] = seconds / forward;
  }
}

/// 512 tokens one by one after a prompt of 2,048.
void decode(benchmark::State& state, const std::string& method, const std::string& backend) {
  const Input input = read_input();
  const auto methods = evaluate::on_all_layers(method::preset(method), input.decoder.config());
  const evaluate::Prompt prompt =
      evaluate::run_prompt(input.decoder, input.tokens[0].slice(0, 0, kContext), DType::bf16);
  const at::Tensor next = input.tokens[1].slice(0, 0, kDecoded);
  for ([[maybe_unused]] auto _ : state) {
    const double seconds = seconds_of(
        [&] { evaluate::decode(input.decoder, methods, {.backend = backend}, &prompt, next); });
    report(state, seconds);
    state.counters["tokens_per_second"] = static_cast<double>(kDecoded) / seconds;
  }
}

using Run = void (*)(benchmark::State&, const std::string&, const std::string&);

void add(const std::string& name, const std::string& method, const std::string& backend, Run run) {
  const std::string text = fmt::format("experiment/backend:{}/name:{}_{}/batch:1/tokens:{}",
                                       backend, name, method, kContext);
  benchmark::RegisterBenchmark(text.c_str(),
                               [=](benchmark::State& state) {
                                 const c10::NoGradGuard no_grad;
                                 begin_samples(text);
                                 try {
                                   run(state, method, backend);
                                 } catch (const Error& error) {
                                   state.SkipWithError(error.what());
                                 }
                               })
      ->UseManualTime()
      ->Iterations(1)
      ->Unit(benchmark::kSecond);
}

}  // namespace

void register_models() {
  for (const char* method : {"kivi", "oscar_ots", "quarot_windows"}) {
    add("model_pass", method, "reference", teacher_forced);
    add("model_decode", method, "cpu", decode);
  }
}

}  // namespace kvlab::bench
