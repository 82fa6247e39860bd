#include "run/estimate.h"

#include <algorithm>
#include <set>

#include "run/provenance.h"

namespace kvlab::run {
namespace {

// Rates of one core of a 2.1 GHz Xeon, from runs of the shipped experiments; good to a factor of
// two.
constexpr double seconds_per_cell = 0.02;
constexpr double seconds_per_element =
    60e-9;  // of keys and values: transform, encode, decode, errors
/// Of the attention matrix of the probes. Kernels are twice as fast; `cuda` counts as `cpu`, since
/// most of a cell's time is spent beside them.
double seconds_per_weight(const std::string& backend) {
  return backend == "reference" ? 70e-9 : 35e-9;
}
constexpr double seconds_per_learning = 6.0;     // one layer of a learned rotation
constexpr double seconds_per_product = 120e-12;  // a weight times a token of a whole model
constexpr int64_t bytes_per_cell = 24 << 10;

/// Whole models: all weights meet all tokens, and once more in scoring and comparing.
double model_seconds(const config::Cell& cell) {
  const nlohmann::json& shape = cell.config["dataset"];
  const auto of = [&](const char* name) { return shape.value(name, 0.0); };
  // The layers of a Llama of this width: four attention matrices, three of about three times it.
  const double hidden = of("q_heads") * of("head_dim");
  return seconds_per_product * 13 * hidden * hidden * of("layers") * of("tokens") * of("batch");
}

double cell_seconds(const config::Cell& cell) {
  if (cell.dataset.model) return model_seconds(cell);
  const nlohmann::json& shape = cell.config["dataset"];
  const auto of = [&](const char* name) { return shape.value(name, 0.0); };
  const double probes =
      cell.probes.placement == "all" ? of("tokens") : static_cast<double>(cell.probes.count);
  const double elements = 2 * of("batch") * of("kv_heads") * of("tokens") * of("head_dim");
  const double weights = of("batch") * of("q_heads") * probes * of("tokens");
  return seconds_per_cell + seconds_per_element * elements +
         seconds_per_weight(cell.backend) * weights;
}

bool is_learned(const config::Cell& cell) {
  for (const char* key : {"key.rotate", "value.rotate"}) {
    if (get_text(cell.recipe.settings, key) == "learned" && method::is_used(cell.recipe, key))
      return true;
  }
  return false;
}

int64_t stored_bytes(const config::Cell& cell) {
  // Rotations of each head, kept in float64 and deflated.
  const auto d = cell.config["dataset"].value("head_dim", int64_t{0});
  const auto heads = cell.config["dataset"].value("kv_heads", int64_t{0});
  int64_t bytes = bytes_per_cell;
  if (method::needs_calibration(cell.recipe))
    bytes += 2 * 8 * d * d * (is_learned(cell) ? heads : 1);
  return bytes;
}

}  // namespace

Estimate estimate(const config::Plan& plan, const std::vector<size_t>& cells,
                  const Options& options) {
  Estimate estimate;
  std::set<std::string> learned;
  for (const size_t index : cells) {
    const config::Cell& cell = plan.cells[index];
    estimate.bytes += bytes_per_cell;
    if (cell.state != config::CellState::run) continue;
    estimate.seconds += cell_seconds(cell);
    estimate.bytes += stored_bytes(cell) - bytes_per_cell;
    // Passages and sweep points of one layer share what is learned for it.
    if (is_learned(cell) && learned.insert(cell.recipe.id + std::to_string(cell.layer)).second) {
      estimate.seconds += seconds_per_learning;
    }
  }
  const int64_t jobs = options.jobs > 0 ? options.jobs : cores();
  estimate.seconds /= static_cast<double>(
      std::clamp<int64_t>(std::min(jobs, cores()), 1, 1 + static_cast<int64_t>(cells.size())));
  return estimate;
}

}  // namespace kvlab::run
