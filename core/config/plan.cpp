#include "config/plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "base/names.h"
#include "config/axis_effect.h"
#include "config/calibration_check.h"
#include "config/data_check.h"
#include "config/exclusion.h"
#include "config/identity.h"
#include "config/plan_order.h"
#include "config/reader.h"
#include "config/resolver.h"
#include "config/sweep.h"
#include "data/synthetic_params.h"
#include "method/schema.h"

namespace kvlab::config {
namespace {

using nlohmann::json;

// A plan takes about 40 KB a row; more rows than this are a slip of the hand.
constexpr size_t kMostRows = 200'000;

[[noreturn]] void refuse_size(const Experiment& experiment, const std::string& rows) {
  const std::string message = fmt::format(
      "the experiment has {} rows, one file takes {}: sweep less, or split it into several files",
      rows, kMostRows);
  throw ConfigError({{experiment.file.string(), 0, 0, message}});
}

class Planner {
 public:
  Planner(const Experiment& experiment, const Describe& describe, const Refuse& refuse)
      : experiment_(experiment),
        describe_(describe),
        whole_models_(has_models(experiment)),
        axes_(axis_names(experiment)),
        points_(sweep_points(experiment)),
        resolver_(
            experiment, refuse, axes_, points_,
            [this](const Mark& mark, const std::string& message) { problem(mark, message); }) {}

  Plan run() {
    check_measures();
    check_data();
    const std::vector<std::vector<int64_t>> layers = all_layers();
    check_size(layers);
    check_axes();
    fail_on_problems();
    plan_.axes = axes_;
    for (size_t dataset = 0; dataset < experiment_.datasets.size(); ++dataset) {
      for (const int64_t layer : layers[dataset]) {
        for (size_t method = 0; method < experiment_.methods.size(); ++method) {
          for (size_t point = 0; point < points_.size(); ++point) {
            add({dataset, layer, method, point, 0});
          }
        }
      }
    }
    fail_on_problems();
    fail_if_nothing_runs();
    warn_of_idle_exclusions();
    for (const auto& [mark, message] : resolver_.idle_layers()) warn(mark, message);
    tell_notes();
    warn_of_shared_cells(plan_);
    put_samples_together(plan_, datasets_of_cells_);
    return std::move(plan_);
  }

 private:
  void check_measures() const {
    if (auto refused = refused_backend(experiment_.backend)) throw Error(*refused);
    for (const std::string& measure : experiment_.measure) {
      if (auto refused = refused_measure(measure, experiment_)) throw Error(*refused);
    }
  }

  const DatasetInfo& info(const DatasetItem& item) {
    const std::string key = item.source + item.path.string() + json(item.params).dump() +
                            (item.allow_nonfinite ? "+" : "") +
                            fmt::format("|{}|{}", item.stretch.first, item.stretch.count) +
                            part_name(item);
    const auto found = infos_.find(key);
    return found != infos_.end() ? found->second
                                 : infos_.emplace(key, describe_(item)).first->second;
  }

  static std::string part_name(const DatasetItem& item) {
    if (!item.model) return "";
    return fmt::format("|{}|{}|{}|{}|{}", item.model->tokens.string(), item.model->passage,
                       item.model->length, item.model->needles.string(), item.model->task);
  }

  void check_data() {
    const Describe known = [&](const DatasetItem& item) { return info(item); };
    problems_ = data_problems(experiment_, axes_, points_, known);
    fail_on_problems();
  }

  std::vector<std::vector<int64_t>> all_layers() {
    std::vector<std::vector<int64_t>> result;
    for (const DatasetItem& item : experiment_.datasets) {
      result.push_back(item.layers.empty() ? info(at_point(item, axes_, points_.front())).layers
                                           : item.layers);
    }
    return result;
  }

  void check_size(const std::vector<std::vector<int64_t>>& layers) const {
    size_t samples = 0;
    for (const auto& of_item : layers) samples += of_item.size();
    const size_t rows =
        samples * experiment_.methods.size() * points_.size() * experiment_.seeds.size();
    if (rows > kMostRows) refuse_size(experiment_, fmt::format("up to {}", rows));
  }

  void check_axes() {
    if (axes_.empty()) return;
    std::set<int64_t> head_dims;
    for (const DatasetItem& item : experiment_.datasets) {
      for (const Point& point : points_) {
        head_dims.insert(info(at_point(item, axes_, point)).head_dim);
      }
    }
    std::vector<std::string> labels;
    for (const MethodUse& use : experiment_.methods) labels.push_back(use.label);
    for (const size_t i : idle_axes(experiment_, head_dims)) {
      const SweepAxis& axis = axis_at(experiment_, i);
      problem(axis.mark,
              fmt::format("sweep axis '{}' changes nothing for any {}", axis.key,
                          is_dataset_axis(axis.key) ? std::string("dataset listed")
                                                    : "method listed (" + join(labels) + ")"));
    }
  }

  /// The rows of one sweep point: one a seed, or one where the seed is not used.
  void add(Place place) {
    DatasetItem item = at_point(experiment_.datasets[place.dataset], axes_, points_[place.point]);
    item.layers = {place.layer};
    const DatasetInfo& known = info(item);
    const Resolved& resolved = resolver_.at(place, known);
    const auto calibration =
        item.calibration.empty()
            ? calibration_at_point(experiment_.calibration, axes_, points_[place.point])
            : item.calibration;
    const bool calibrates = resolved.needs_calibration && !calibration.empty();

    Cell cell;
    cell.dataset = item;
    cell.dataset.calibration.clear();
    cell.layer = place.layer;
    cell.recipe = resolved.recipe;
    cell.probes = experiment_.probes;
    cell.measure = experiment_.measure;
    cell.backend = experiment_.backend;
    CellInputs inputs{.info = known,
                      .method = resolved.canonical,
                      .requested = resolved.requested,
                      .rotations = resolved.rotations};
    inputs.seed_used = known.uses_seed || resolved.uses_seed;
    if (calibrates) {
      cell.calibration = calibration;
      if (calibration.front().source == "capture" && !whole_models_) {
        cell.calibration.front().layers = {place.layer};
      }
      inputs.calibration = &info(calibration.front());
    }
    const auto seeds =
        inputs.seed_used ? experiment_.seeds : std::vector<int64_t>{experiment_.seeds.front()};
    for (const int64_t seed : seeds) {
      place.seed = seed;
      cell.seed = seed;
      add_row(place, cell, inputs, resolved);
    }
  }

  void add_row(const Place& place, Cell cell, const CellInputs& inputs, const Resolved& resolved) {
    const MethodUse& use = experiment_.methods[place.method];
    decide(place, resolved, inputs.info, cell);
    if (cell.state == CellState::run) check_calibration(use, inputs, resolved, cell);
    for (const auto& [path, calibration] : resolved.learned_from) {
      if (calibration.empty() || calibration != inputs.info.content) continue;
      cell.warnings.push_back(path + " was calibrated on the evaluation set");
    }
    if (passes_float32(cell.recipe, inputs.info)) {
      cell.warnings.push_back("a passthrough side reports 32 bits: the data is float32");
    }
    for (const std::string& note : inputs.info.notes) cell.warnings.push_back(note);

    json identity = identity_of(cell, inputs);
    // Left out on purpose is no property of the configuration: another row may run the same one.
    if (cell.state == CellState::excluded) identity["excluded"] = cell.reason;
    cell.id = id_of(identity);
    const auto [known, is_new] = cells_.emplace(cell.id, plan_.cells.size());
    if (is_new) {
      cell.config = config_of(cell, inputs, use, sweep_of(place));
      if (inputs.calibration != nullptr) {
        cell.config["calibration"]["overlaps_eval"] = overlap_of(cell, inputs);
      }
      datasets_of_cells_.push_back(place.dataset);
      plan_.cells.push_back(std::move(cell));
    }
    plan_.rows.push_back({.cell = known->second,
                          .method = use.recipe.id,
                          .label = use.label,
                          .dataset = experiment_.datasets[place.dataset].label,
                          .text = experiment_.datasets[place.dataset].text,
                          .layer = place.layer,
                          .seed = place.seed,
                          .seed_used = inputs.seed_used,
                          .sweep = points_[place.point],
                          .warnings = warnings_of(use, resolved)});
  }

  static std::vector<std::string> warnings_of(const MethodUse& use, const Resolved& resolved) {
    std::vector<std::string> warnings = use.notes;
    warnings.insert(warnings.end(), resolved.notes.begin(), resolved.notes.end());
    return warnings;
  }

  void decide(const Place& place, const Resolved& resolved, const DatasetInfo& data, Cell& cell) {
    if (auto exclusion = exclusion_of(experiment_, place, points_[place.point])) {
      met_exclusions_.insert(*exclusion);
      cell.state = CellState::excluded;
      cell.reason = experiment_.excludes[*exclusion].reason;
    } else if (auto refused = refused_shape(cell.dataset)) {
      cell.state = CellState::unsupported;
      cell.reason = *refused;
    } else if (resolved.unsupported) {
      cell.state = CellState::unsupported;
      cell.reason = *resolved.unsupported;
    } else if (auto lacking = lacks_keys_before_rope(cell, data)) {
      cell.state = CellState::unsupported;
      cell.reason = *lacking;
    }
  }

  /// Why a method before RoPE cannot run on this layer, as far as the file's header tells.
  static std::optional<std::string> lacks_keys_before_rope(const Cell& cell,
                                                           const DatasetInfo& data) {
    const auto found = data.no_keys_before_rope.find(cell.layer);
    const bool is_asked = get_text(cell.recipe.settings, "key.space") == "pre_rope" &&
                          get_text(cell.recipe.settings, "key.codec.kind") != "passthrough";
    return is_asked && found != data.no_keys_before_rope.end() ? std::optional(found->second)
                                                               : std::nullopt;
  }

  void check_calibration(const MethodUse& use, const CellInputs& inputs, const Resolved& resolved,
                         Cell& cell) {
    if (!resolved.needs_calibration) return;
    if (inputs.calibration == nullptr) {
      problem(use.mark, fmt::format("method '{}' needs a calibration set: name one under "
                                    "'calibration', as in calibration: "
                                    "{{source: capture, path: …}}",
                                    use.label));
      return;
    }
    const Described calibration{cell.calibration.front(), *inputs.calibration};
    const Described evaluated{cell.dataset, inputs.info};
    for (const int64_t layer : calibrated_layers(cell, inputs.info)) {
      for (const std::string& error : calibration_errors(calibration, evaluated, layer)) {
        problem(calibration.item.mark, error);
      }
    }
    cell.warnings = calibration_warnings(calibration, evaluated);
    if (overlap_of(cell, inputs) == "yes") {
      cell.warnings.push_back("calibration shares tokens with the evaluation set");
    }
  }

  /// The layers that a cell needs calibration on.
  static std::vector<int64_t> calibrated_layers(const Cell& cell, const DatasetInfo& info) {
    if (!cell.dataset.model) return {cell.layer};
    std::vector<int64_t> layers;
    for (int64_t layer = 0; layer < info.model_layers; ++layer) {
      if (method::needs_calibration(method::on_layer(cell.recipe, layer))) layers.push_back(layer);
    }
    return layers;
  }

  const std::string& overlap_of(const Cell& cell, const CellInputs& inputs) {
    const auto key = std::tuple(inputs.calibration, &inputs.info, cell.seed);
    const auto found = overlaps_.find(key);
    if (found != overlaps_.end()) return found->second;
    const Described calibration{cell.calibration.front(), *inputs.calibration};
    const Described evaluated{cell.dataset, inputs.info};
    return overlaps_.emplace(key, overlap(calibration, evaluated, cell.seed)).first->second;
  }

  /// Why synthetic data of this shape cannot be drawn, as at some points of a sweep.
  static std::optional<std::string> refused_shape(const DatasetItem& item) {
    if (item.source != "synthetic") return std::nullopt;
    if (auto reason = data::refuse_synthetic(item.params)) return "dataset: " + *reason;
    return std::nullopt;
  }

  static bool passes_float32(const method::Recipe& recipe, const DatasetInfo& data) {
    return data.dtype == DType::fp32 &&
           std::any_of(method::kSides.begin(), method::kSides.end(), [&](const auto& side) {
             return recipe.settings.at(side + ".codec.kind") == "passthrough";
           });
  }

  json sweep_of(const Place& place) const {
    json sweep = json::object();
    for (size_t i = 0; i < axes_.size(); ++i) sweep[axes_[i]] = points_[place.point][i];
    return sweep;
  }

  void warn(const Mark& mark, const std::string& message) {
    plan_.warnings.push_back(Problem{mark.file, mark.line, mark.column, message}.text());
  }

  /// An item's passages say it once.
  void tell_notes() {
    std::set<std::string> told;
    for (const DatasetItem& item : experiment_.datasets) {
      if (!item.model) continue;
      const std::string file =
          (item.model->needles.empty() ? item.model->tokens : item.model->needles).string();
      for (const std::string& note : info(item).notes) {
        if (told.insert(file + note).second) warn(item.mark, file + ": " + note);
      }
    }
  }

  /// An exclusion behind another one that covers its rows too is idle as well.
  void warn_of_idle_exclusions() {
    for (size_t i = 0; i < experiment_.excludes.size(); ++i) {
      if (met_exclusions_.contains(i)) continue;
      warn(experiment_.excludes[i].mark,
           fmt::format("the exclusion {} leaves nothing out", experiment_.excludes[i].when.dump()));
    }
  }

  void fail_if_nothing_runs() {
    if (std::any_of(plan_.cells.begin(), plan_.cells.end(),
                    [](const Cell& cell) { return cell.state == CellState::run; })) {
      return;
    }
    problem({}, "nothing is left to run:");
    for (const Row& row : plan_.rows) {
      const Cell& cell = plan_.cells[row.cell];
      problem({}, fmt::format("{} on {}: {}: {}", row.label, row.dataset,
                              cell.state == CellState::excluded ? "excluded" : "unsupported",
                              cell.reason));
    }
    fail_on_problems();
  }

  /// At the place of what is wrong; {} is the file as a whole.
  void problem(const Mark& mark, const std::string& message) {
    if (!told_.insert(message).second) return;
    const std::string file = mark.file.empty() ? experiment_.file.string() : mark.file;
    problems_.push_back({file, mark.line, mark.column, message});
  }

  void fail_on_problems() const {
    if (!problems_.empty()) throw ConfigError(problems_);
  }

  const Experiment& experiment_;
  const Describe& describe_;
  const bool whole_models_;
  const std::vector<std::string> axes_;
  const std::vector<Point> points_;
  Resolver resolver_;
  Plan plan_;
  std::vector<Problem> problems_;
  std::set<std::string> told_;
  std::map<std::string, DatasetInfo> infos_;  // node-based: references stay valid
  std::set<size_t> met_exclusions_;           // that some row is left out by
  std::map<std::tuple<const DatasetInfo*, const DatasetInfo*, int64_t>, std::string> overlaps_;
  std::map<std::string, size_t> cells_;
  std::vector<size_t> datasets_of_cells_;
};

}  // namespace

Plan make_plan(const Experiment& experiment, const Describe& describe, const Refuse& refuse) {
  if (count_points(experiment, kMostRows) > kMostRows) {
    refuse_size(experiment, fmt::format("more than {}", kMostRows));
  }
  return Planner(experiment, describe, refuse).run();
}

}  // namespace kvlab::config
