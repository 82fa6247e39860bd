#include <fmt/format.h>

#include <memory>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/names.h"
#include "base/output_file.h"
#include "base/schemas.h"
#include "calibrate/prepare.h"
#include "calibrate/rotation_file.h"
#include "cli/verbs.h"
#include "config/calibration_check.h"
#include "data/capture.h"
#include "method/recipe.h"
#include "quant/parts.h"
#include "run/describe.h"

namespace kvlab::cli {
namespace {

struct Arguments {
  std::string id, data, out;
};

/// Says what a run would say of this calibration set.
config::DatasetInfo described(const std::string& capture) {
  config::DatasetItem item;
  item.source = "capture";
  item.path = capture;
  config::DatasetInfo info = run::describe(item, {}, {});
  const config::Described itself{item, info};
  for (const int64_t layer : info.layers) {
    const auto errors = config::calibration_errors(itself, itself, layer);
    if (!errors.empty()) throw Error(errors.front());
  }
  for (const std::string& warning : config::calibration_warnings(itself, itself)) {
    fmt::print(stderr, "kvlab: warning: {}\n", warning);
  }
  return info;
}

/// What a side's calibration learned, each under its name in the format.
calibrate::RotationSide learned(const calibrate::PreparedSide& from, const Settings& settings) {
  calibrate::RotationSide made{
      .rotation = from.stored_rotation, .center = from.transform.center(), .extra = {}};
  if (from.passthrough) return made;
  // No rotation, so no reader may take it for one.
  if (from.is_basis) made.extra["basis"] = std::exchange(made.rotation, at::Tensor());
  if (from.order.defined()) made.extra["order"] = from.order.to(at::kDouble);
  const Settings codec = below(settings, "codec.");
  if (quant::learns_codebook(codec)) made.extra["codebook"] = from.shared;
  if (quant::clip_is_calibrated(codec)) made.extra["clip"] = from.shared;
  return made;
}

/// `rotate: file:PATH` takes rotations and centres; a file may hold more, for whoever reads it.
std::vector<std::string> not_taken(const calibrate::RotationFile& file) {
  std::set<std::string> names;
  for (const auto& [number, layer] : file.layers) {
    for (const calibrate::RotationSide* side : {&layer.key, &layer.value}) {
      for (const auto& [name, tensor] : side->extra) names.insert(name);
      if (side->center.defined() && !side->rotation.defined()) names.insert("center");
    }
  }
  return {names.begin(), names.end()};
}

void execute(const Arguments& arguments) {
  check_output(arguments.out, kRotationSchema);
  const method::Recipe& preset = method::preset(arguments.id);
  if (!method::needs_calibration(preset)) {
    throw Error(fmt::format("{} needs no calibration", preset.id));
  }
  const config::DatasetInfo info = described(arguments.data);
  if (const auto reason = method::unsupported(preset, info.head_dim)) {
    throw Error(fmt::format("{}: {}", preset.id, *reason));
  }
  calibrate::CalibrationStore store{{}};
  calibrate::RotationFile file{.method = preset.id, .calibration = info.content, .layers = {}};
  for (const int64_t layer : info.layers) {
    const auto load = [&] {
      std::vector<std::string> warnings;
      return std::make_shared<const data::Sample>(
          data::load_capture(arguments.data, layer, {.placement = "all", .count = 0},
                             /*allow_nonfinite=*/false, &warnings));
    };
    const calibrate::CalibrationSample sample{.load = load, .content = info.content};
    const method::Recipe recipe = method::on_layer(preset, layer);
    const calibrate::Prepared prepared =
        calibrate::prepare(recipe, info.kv_heads, info.head_dim, layer,
                           /*seed=*/0, sample, store, [](int64_t, int64_t) {});
    file.layers[layer] = {learned(prepared.key, recipe.side("key")),
                          learned(prepared.value, recipe.side("value"))};
    for (const std::string& note : prepared.notes) {
      fmt::print(stderr, "kvlab: warning: layer {}: {}\n", layer, note);
    }
    fmt::print(stderr, "layer {} done\n", layer);
  }
  if (const std::vector<std::string> names = not_taken(file); !names.empty()) {
    fmt::print(stderr,
               "kvlab: warning: rotate: file:{} takes rotations with their centres; {} in it: for "
               "other programs, {} itself learns it anew in each run\n",
               arguments.out, join(names), preset.id);
  }
  calibrate::write_rotation_file(arguments.out, file);
  fmt::print("{}: {} for {}\n", arguments.out, counted(std::ssize(file.layers), "layer"),
             preset.id);
}

}  // namespace

void add_calibrate(CLI::App& app, Exit&) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App* verb = app.add_subcommand(
      "calibrate", "Make a method's rotations from a capture and keep them in a file");
  verb->add_option("method", arguments->id, "a method that needs calibration")->required();
  verb->add_option("--data", arguments->data,
                   "capture (kvlab.capture/1) with the queries of all positions")
      ->required();
  verb->add_option("--out", arguments->out, "rotation file to write (kvlab.rotation/1)")
      ->required();
  verb->footer(
      "Example: kvlab calibrate oscar_cov --data datasets/smollm2/calibration.h5 --out "
      "oscar_cov.h5\n"
      "Use it in a recipe as rotate: file:oscar_cov.h5");
  verb->callback([arguments] { execute(*arguments); });
}

}  // namespace kvlab::cli
