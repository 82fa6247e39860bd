#include <fmt/format.h>

#include <charconv>
#include <filesystem>
#include <memory>

#include "base/error.h"
#include "base/names.h"
#include "base/output_file.h"
#include "base/schemas.h"
#include "calibrate/convert.h"
#include "cli/verbs.h"
#include "data/capture_info.h"

namespace kvlab::cli {
namespace {

struct Arguments {
  std::vector<std::string> files;
  std::string side, dtype, data;
  std::vector<std::string> layers;
};

std::pair<int64_t, int64_t> mapping(const std::string& text) {
  std::pair<int64_t, int64_t> pair;
  const char* const end = text.data() + text.size();
  const auto from = std::from_chars(text.data(), end, pair.first);
  pair.second = pair.first;
  bool good = from.ec == std::errc{} && pair.first >= 0;
  if (good && from.ptr != end) {
    good = *from.ptr == '=';
    const auto to = std::from_chars(from.ptr + 1, end, pair.second);
    good = good && to.ec == std::errc{} && to.ptr == end && pair.second >= 0;
  }
  if (!good) {
    throw Error(fmt::format("--layer must be a layer (3) or a mapping (3=0), found '{}'", text));
  }
  return pair;
}

/// The layers of several files together; a side of a layer may be in one of them only.
void add(const calibrate::RotationFile& from, const std::string& path,
         calibrate::RotationFile& all) {
  if (all.method.empty()) all.method = from.method;
  if (all.calibration.empty()) all.calibration = from.calibration;
  for (const auto& [number, layer] : from.layers) {
    calibrate::RotationLayer& target = all.layers[number];
    const auto take = [&, layer_number = number](const calibrate::RotationSide& side,
                                                 calibrate::RotationSide& into, const char* name) {
      if (!calibrate::is_there(side)) return;
      if (calibrate::is_there(into)) {
        throw Error(fmt::format("{}: the {} side of layer {} is in another file too", path, name,
                                layer_number));
      }
      into = side;
    };
    take(layer.key, target.key, "key");
    take(layer.value, target.value, "value");
  }
}

void execute(const Arguments& arguments) {
  if (arguments.files.size() < 2) throw Error("convert needs files to read and one to write");
  const std::string out = arguments.files.back();
  for (size_t i = 0; i + 1 < arguments.files.size(); ++i) {
    std::error_code missing;
    if (std::filesystem::equivalent(arguments.files[i], out, missing)) {
      throw Error(fmt::format("{}: would be read and written", out));
    }
  }
  // A .pt or .safetensors that is there may be somebody's model.
  const bool is_ours = std::filesystem::path(out).extension() == ".h5";
  check_output(out, is_ours ? kRotationSchema : "");
  calibrate::ConvertOptions options{.side = arguments.side, .dtype = arguments.dtype, .layers = {}};
  for (const std::string& text : arguments.layers) options.layers.push_back(mapping(text));
  calibrate::RotationFile all;
  std::vector<std::string> notes;
  for (size_t i = 0; i + 1 < arguments.files.size(); ++i) {
    const std::string& path = arguments.files[i];
    add(calibrate::read_rotations(path, options, notes), path, all);
  }
  if (!arguments.data.empty()) {
    const data::CaptureInfo info = data::describe_capture(arguments.data);
    calibrate::check_model(all, info.kv_heads, info.head_dim, info.layers);
  }
  calibrate::write_rotations(out, all, options);
  for (const std::string& note : notes) fmt::print(stderr, "{}\n", note);
  fmt::print("{}: {}\n", out, counted(std::ssize(all.layers), "layer"));
}

}  // namespace

void add_convert(CLI::App& app, Exit&) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App* verb = app.add_subcommand(
      "convert",
      "Rotations between kvlab.rotation/1 (.h5), .pt and .safetensors; runs no code of "
      "a .pt");
  verb->add_option("files", arguments->files,
                   "IN OUT, or several inputs and OUT (a .pt holds keys or values)")
      ->required();
  verb->add_option("--side", arguments->side,
                   "what a .pt holds, where neither its name (k_…, v_…) nor its objective says it")
      ->check(CLI::IsMember({"key", "value"}));
  verb->add_option("--layer", arguments->layers,
                   "a layer to take (3) or to take as another one (3=0), repeatable; default: all");
  verb->add_option("--dtype", arguments->dtype, "type of tensors in .pt and .safetensors")
      ->check(CLI::IsMember({"fp64", "fp32", "fp16", "bf16"}));
  verb->add_option("--data", arguments->data,
                   "capture of the model that the rotations must fit: layers, heads, channels");
  verb->footer(
      "Example: kvlab convert k_rotation_qqt_r_h_pbr.pt v_rotation_sst_r_h_pbr.pt rotations.h5");
  verb->callback([arguments] { execute(*arguments); });
}

}  // namespace kvlab::cli
