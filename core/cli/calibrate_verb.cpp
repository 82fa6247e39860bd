#include <fmt/format.h>

#include <memory>
#include <utility>

#include "base/error.h"
#include "base/output_file.h"
#include "calibrate/prepare.h"
#include "calibrate/rotation_file.h"
#include "cli/verbs.h"
#include "config/calibration_check.h"
#include "data/capture.h"
#include "method/recipe.h"
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
  config::DatasetInfo info = run::describe(item, {});
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

void execute(const Arguments& arguments) {
  check_output(arguments.out, calibrate::kRotationSchema);
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
    const calibrate::Prepared prepared =
        calibrate::prepare(method::on_layer(preset, layer), info.kv_heads, info.head_dim, layer,
                           /*seed=*/0, sample, store, [](int64_t, int64_t) {});
    const auto side = [](const calibrate::PreparedSide& from) {
      calibrate::RotationSide made{
          .rotation = from.stored_rotation, .center = from.transform.center(), .extra = {}};
      // No rotation, so no reader may take it for one.
      if (from.is_basis) made.extra["basis"] = std::exchange(made.rotation, at::Tensor());
      if (from.order.defined()) made.extra["order"] = from.order.to(at::kDouble);
      return made;
    };
    file.layers[layer] = {side(prepared.key), side(prepared.value)};
    fmt::print(stderr, "layer {} done\n", layer);
  }
  calibrate::write_rotation_file(arguments.out, file);
  fmt::print("{}: {} layers for {}\n", arguments.out, file.layers.size(), preset.id);
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
