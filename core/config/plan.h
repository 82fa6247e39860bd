#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "config/experiment.h"

namespace kvlab::config {

/// What planning needs to know of a dataset item without loading tensors.
struct DatasetInfo {
  int64_t batch = 1;
  int64_t kv_heads = 0;
  int64_t q_heads = 0;
  int64_t tokens = 0;
  int64_t head_dim = 0;
  int64_t probes = 0;  // query positions stored
  DType dtype = DType::fp32;
  bool has_w_o = false;
  std::map<int64_t, std::string> no_keys_before_rope;  // layers of a capture, and why
  bool uses_seed = false;                              // synthetic data is drawn anew for each seed
  std::vector<int64_t> layers;  // available ones; synthetic: {0}; whole models: {-1}
  int64_t model_layers = 0;     // of a whole model
  std::string model;            // a capture's, empty where its file does not say
  std::string content;  // SHA-256 of the file's bytes, or of the generator's parameters and version
  std::vector<int32_t>
      token_ids;  // captures: all of /tokens, to find text shared with a calibration set
  std::vector<std::string> notes;  // of a whole model: warnings of each of its rows
};

/// Why a backend cannot take a recipe on data of this shape and type, as a sentence; nothing where
/// it can.
using Refuse = std::function<std::optional<std::string>(
    const std::string& backend, const method::Recipe& recipe, const DatasetInfo& data)>;

/// A synthetic calibration set is drawn from this seed, whatever the cell's: rotations belong to a
/// model, not to a text.
inline constexpr int64_t kCalibrationSeed = 0;

enum class CellState { run, unsupported, excluded };

/// One resolved configuration. Pure data: a cell can run in any process on any machine.
struct Cell {
  std::string id;         // 32 hex digits over `identity`
  nlohmann::json config;  // contract section 6, /cells/<id>/config
  CellState state = CellState::run;
  std::string reason;
  DatasetItem dataset;  // sweep edits applied; layers holds the one layer
  int64_t layer = 0;
  method::Recipe recipe;                 // sweep edits applied, this layer's
  std::vector<DatasetItem> calibration;  // none or one; set where the recipe needs it
  int64_t seed = 0;
  Probes probes;
  std::vector<std::string> measure;
  std::string backend;
  std::vector<std::string> warnings;  // known before it runs
};

/// One row of the summary; several rows may share a cell.
struct Row {
  size_t cell = 0;
  std::string method;
  std::string label;
  std::string dataset;
  std::string text;
  int64_t layer = 0;
  int64_t seed = 0;
  bool seed_used = false;
  std::vector<nlohmann::json> sweep;  // one value an axis of Plan::axes
  std::vector<std::string> warnings;  // of the row beside those of its cell
};

struct Plan {
  std::vector<std::string> axes;
  std::vector<Cell> cells;
  std::vector<Row> rows;
  std::vector<std::string> warnings;  // of the experiment as a whole, each with its place
};

/// Expands an experiment to cells and rows (contract section 3): sweeps, exclusions, coinciding
/// points, shared cells. Rows are ordered by dataset, layer, method, sweep point, seed, and cells
/// so that those on one sample are together. A row whose cell does not depend on the seed stands
/// once, with the first seed and seed_used false. Reads the files of `rotate: file:PATH` to know
/// their content. Throws ConfigError where an axis has no effect on any method, a layer does not
/// exist, calibration is missing or does not fit, or nothing is left to run; Error where the
/// backend or a measure cannot be had. Exclusions and layers of a method that meet no row are
/// warnings: `--set` may have taken away what they are about.
Plan make_plan(const Experiment& experiment, const Describe& describe, const Refuse& refuse);

}  // namespace kvlab::config
