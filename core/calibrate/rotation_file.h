#pragma once

#include <ATen/ATen.h>

#include <filesystem>
#include <map>
#include <optional>
#include <string>

namespace kvlab::calibrate {

/// One side's tensors of a layer in a kvlab.rotation/1 file. Any of them may be undefined.
struct RotationSide {
  at::Tensor rotation;                      // float64 [1 or Hkv, d, d]
  at::Tensor center;                        // float32 [Hkv, d]
  std::map<std::string, at::Tensor> extra;  // what else was kept: losses, kept heads
};

/// Whether a side holds anything.
bool is_there(const RotationSide& side);

/// What is wrong with a side, and with which of its tensors.
struct RotationFault {
  std::string tensor;  // "rotation", "center", …
  std::string what;    // a sentence's end, behind its name
};

/// NaN or infinite values, shapes that are not those of the format or of the side's other tensors,
/// a rotation that is not orthogonal to 1e-3, a basis without an inverse, an order that is no
/// permutation.
std::optional<RotationFault> fault_of(const RotationSide& side);

/// One layer of it.
struct RotationLayer {
  RotationSide key, value;
};

struct RotationFile {
  std::string method;
  std::string calibration;  // hash of what it was made from
  std::map<int64_t, RotationLayer> layers;
};

/// Reads a whole file. Throws Error where it is no kvlab.rotation/1 file, a side has a fault
/// (fault_of), or the contents are not those of the checksum that
/// write_rotation_file left; files of other programs need none.
RotationFile read_rotation_file(const std::filesystem::path& path);

/// Writes in one step: a temporary file in the same folder, then a rename.
void write_rotation_file(const std::filesystem::path& path, const RotationFile& file);

}  // namespace kvlab::calibrate
