#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "calibrate/rotation_file.h"

namespace kvlab::calibrate {

/// How a rotation file is read and written.
struct ConvertOptions {
  std::string side;   // "key" or "value" where a .pt does not say itself; empty: it must
  std::string dtype;  // of .pt and .safetensors: "fp64", "fp32", "fp16" or "bf16"; empty: fp32
  std::vector<std::pair<int64_t, int64_t>> layers;  // {from, to}; empty: all as they are
};

/// Rotations from a file by its suffix: .h5 (kvlab.rotation/1), .pt or .safetensors.
///  - .pt is OSCAR's RotationZoo form: {"format_version": 1, "objective", "source_grouping",
///    "layers": {number: {"layer_id", "rotation" [d, d] or [H, d, d], "eigenvalues" [d], "center"
///    [H, d]}}}, one side a file. The side is options.side, else the one that the file's name
///    begins with (k_, v_), else the one that the objective names (qqt and ktk keys, sst and vtv
///    values).
///  - .safetensors has layers.N.{key,value}.NAME, and "format", "method" and "calibration" in its
///    metadata.
/// Checks shapes, layer numbers, and that RᵀR is I to 1e-3 (fp16 4e-3, bf16 2e-2; such a rotation
/// is pulled to the nearest orthogonal matrix, and `notes` says so). No code in a file is run.
/// Throws Error.
RotationFile read_rotations(const std::filesystem::path& path, const ConvertOptions& options,
                            std::vector<std::string>& notes);

/// Writes them, by the suffix. A .pt holds one side: options.side, or the only one there is.
void write_rotations(const std::filesystem::path& path, const RotationFile& file,
                     const ConvertOptions& options);

/// Throws Error where a layer's shapes are not those of a model with these heads, or the model has
/// no such layer (layers empty: any).
void check_model(const RotationFile& file, int64_t kv_heads, int64_t head_dim,
                 const std::vector<int64_t>& layers);

}  // namespace kvlab::calibrate
