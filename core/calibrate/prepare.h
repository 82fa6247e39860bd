#pragma once

#include <ATen/ATen.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>

#include "calibrate/learn.h"
#include "calibrate/rotation_file.h"
#include "data/sample.h"
#include "method/recipe.h"
#include "quant/codec.h"
#include "transform/transform.h"

namespace kvlab::calibrate {

/// One side of a method with everything it needs on one layer.
struct PreparedSide {
  bool passthrough = false;
  transform::Transform transform{{}, {}, {}};
  std::unique_ptr<quant::Codec> codec;  // null: passthrough
  at::Tensor shared;  // [Hkv, …] what the codec is given: calibrated clip thresholds, codebooks
  at::Tensor
      stored_rotation;  // what `rotation/` of the cell holds; undefined: none, or a Hadamard matrix
  bool is_basis = false;     // that it is no rotation: its columns need not be orthogonal
  at::Tensor order;          // int64 [Hkv·d]: where reordered channels come from
  int64_t shared_bytes = 0;  // what all tokens share, once a layer: rotations, bases, orders,
                             // codebooks, the matrix of a sketch
  bool pre_rope = false;     // the side is quantized before RoPE
};

/// A method ready to encode one layer.
struct Prepared {
  PreparedSide key, value;
  std::vector<std::string> notes;  // "learned keys: 5 of 8 heads kept"
  std::map<std::string, std::vector<double>>
      records;  // per-head losses and such, stored with the cell
};

/// Where finished calibrations are kept: in memory for this process, and as kvlab.rotation/1 files
/// in `folder`, named by a hash of what they were made from. Safe for several threads: what one
/// makes, others wait for.
class CalibrationStore {
 public:
  /// An empty folder name keeps nothing on disk.
  explicit CalibrationStore(std::filesystem::path folder);
  ~CalibrationStore();

  using Make = std::function<RotationLayer()>;
  /// The layer's tensors for `key`; made by `make` where neither memory nor disk has them.
  std::shared_ptr<const RotationLayer> get(const std::string& key, int64_t layer, const Make& make);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// A calibration sample, loaded when something has to be made from it, and the hash that stands for
/// it.
struct CalibrationSample {
  std::function<std::shared_ptr<const data::Sample>()> load;
  std::string content;
};

/// Called while something is learned: steps done and in all. May throw to stop.
using Progress = std::function<void(int64_t done, int64_t all)>;

/// Makes rotations, centres, thresholds and codecs of a recipe for one layer of a model with these
/// heads. Throws Unsupported where the recipe cannot serve the head size, Error where calibration
/// is missing or does not fit.
Prepared prepare(const method::Recipe& recipe, int64_t kv_heads, int64_t head_dim, int64_t layer,
                 int64_t seed, const std::optional<CalibrationSample>& calibration,
                 CalibrationStore& store, const Progress& progress);

}  // namespace kvlab::calibrate
