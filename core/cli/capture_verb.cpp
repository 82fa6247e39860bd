#include <fmt/format.h>

#include <charconv>
#include <filesystem>
#include <memory>
#include <optional>

#include "base/code_version.h"
#include "base/error.h"
#include "base/names.h"
#include "base/output_file.h"
#include "base/schemas.h"
#include "cli/verbs.h"
#include "model/capture.h"
#include "model/device.h"
#include "model/tokens_file.h"
#include "quant/rounding.h"
#include "run/torch_error.h"

namespace kvlab::cli {
namespace {

struct Arguments {
  std::string model, tokens, out;
  std::string layers = "all", probes = "strided:64", dtype = "float32";
  std::string device = "cpu", forward_dtype = "float32";
};

std::optional<int64_t> whole_number(const std::string& text) {
  int64_t number = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (code != std::errc() || end != text.data() + text.size() || number < 0) return std::nullopt;
  return number;
}

std::vector<int64_t> layers_of(const std::string& text) {
  std::vector<int64_t> layers;
  if (text == "all") return layers;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const auto layer = whole_number(text.substr(begin, end - begin));
    if (!layer) {
      throw Error(fmt::format("--layers: expected all or numbers such as 0,10,20, got '{}'", text));
    }
    layers.push_back(*layer);
    begin = end + 1;
  }
  return layers;
}

data::ProbeChoice probes_of(const std::string& text) {
  if (text == "all") return {.placement = "all", .count = 0};
  const size_t colon = text.find(':');
  const std::string placement = text.substr(0, colon);
  const std::string number = colon == std::string::npos ? "" : text.substr(colon + 1);
  const int64_t count = whole_number(number).value_or(0);
  if ((placement != "strided" && placement != "last") || count < 1) {
    throw Error(fmt::format("--probes: expected strided:N, last:N or all, got '{}'", text));
  }
  return {.placement = placement, .count = count};
}

DType dtype_of(const char* option, const std::string& text) {
  if (text == "float32") return DType::fp32;
  if (text == "float16") return DType::fp16;
  if (text == "bfloat16") return DType::bf16;
  throw Error(fmt::format("{}: expected float32, float16 or bfloat16, got '{}'{}", option, text,
                          did_you_mean(text, {"float32", "float16", "bfloat16"})));
}

at::Device device_of(const std::string& text) {
  if (text == "cpu" || text == "cuda") return at::Device(text);
  throw Error(fmt::format("--device: expected cpu or cuda, got '{}'{}", text,
                          did_you_mean(text, {"cpu", "cuda"})));
}

void execute(const Arguments& arguments) {
  check_output(arguments.out, kCaptureSchema);
  model::CaptureRequest request;
  request.layers = layers_of(arguments.layers);
  request.probes = probes_of(arguments.probes);
  request.dtype = dtype_of("--dtype", arguments.dtype);
  const model::Decoder::Options options{
      .type = quant::scalar_type(dtype_of("--forward-dtype", arguments.forward_dtype)),
      .device = device_of(arguments.device)};
  if (auto missing = model::missing_device(options.device)) throw Error(*missing);
  const model::TokensFile text = model::read_tokens(arguments.tokens);
  model::check_tokens(text.tokens, model::read_config(arguments.model).vocabulary, arguments.tokens,
                      "passage", 0);
  const model::Decoder decoder(arguments.model, options);
  if (const auto note = model::beyond_positions(decoder.config(), text.tokens.size(1))) {
    fmt::print(stderr, "kvlab: warning: {}: {}\n", arguments.tokens, *note);
  }
  request.attributes = {
      {"created_by", "kvlab capture " + code_version()},
      {"model", std::filesystem::path(arguments.model).lexically_normal().filename().string()},
      {"model_sha256", model::Weights(arguments.model).content()},
      {"text_sha256", text.text_sha256},
      {"tokenizer", text.tokenizer},
      {"probes", arguments.probes},
      {"forward_dtype", arguments.forward_dtype}};
  if (request.attributes["model"].empty()) {
    request.attributes["model"] =
        std::filesystem::absolute(arguments.model).parent_path().filename().string();
  }
  try {
    model::write_capture(decoder, text.tokens, request, arguments.out,
                         [](int64_t layer) { fmt::print(stderr, "layer {} done\n", layer); });
  } catch (const c10::Error& error) {  // its what() is a stack trace
    throw Error(fmt::format("{}: {}", arguments.model, run::sentence(error)));
  }
  fmt::print("{}: {} x {} tokens\n", arguments.out, text.tokens.size(0), text.tokens.size(1));
}

}  // namespace

void add_capture(CLI::App& app, Exit&) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App* verb = app.add_subcommand(
      "capture", "Run a model over tokens and store its queries, keys and values");
  verb->add_option("--model", arguments->model, "Hugging Face folder (config.json, *.safetensors)")
      ->required();
  verb->add_option("--tokens", arguments->tokens, "passages (kvlab.tokens/1)")->required();
  verb->add_option("--layers", arguments->layers, "all, or numbers such as 0,10,20 (default: all)");
  verb->add_option("--probes", arguments->probes,
                   "queries stored: strided:N, last:N or all (default: strided:64)");
  verb->add_option("--dtype", arguments->dtype,
                   "how tensors are stored: float32 (default), float16, bfloat16");
  verb->add_option("--device", arguments->device, "where the model runs: cpu (default) or cuda");
  verb->add_option("--forward-dtype", arguments->forward_dtype,
                   "of weights and hidden states: float32 (default), float16, bfloat16");
  verb->add_option("--out", arguments->out, "capture to write (kvlab.capture/1)")->required();
  verb->footer(
      "Example: kvlab capture --model models/smollm2 --tokens datasets/smollm2/calibration_text.h5 "
      "--probes all --dtype bfloat16 --out datasets/smollm2/calibration_all.h5\n"
      "datasets/prepare_model.py and datasets/tokenize_text.py make the folder and the tokens.");
  verb->callback([arguments] { execute(*arguments); });
}

}  // namespace kvlab::cli
