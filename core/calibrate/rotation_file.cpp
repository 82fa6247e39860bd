#include "calibrate/rotation_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>
#include <cmath>

#include "base/error.h"
#include "base/h5.h"
#include "base/h5_digest.h"
#include "base/replacement.h"

namespace kvlab::calibrate {
namespace {

std::string layer_group(int64_t layer) { return fmt::format("/layer_{:03d}", layer); }

at::Tensor read_tensor(const h5::File& file, const std::string& path) {
  const std::vector<double> values = file.read<double>(path);
  return at::tensor(at::ArrayRef<double>(values), at::kDouble).reshape(file.info(path).shape);
}

void write_tensor(h5::File& file, const std::string& path, const at::Tensor& tensor) {
  if (!tensor.defined()) return;
  if (tensor.scalar_type() == at::kFloat) {
    const at::Tensor flat = tensor.contiguous();
    file.write(path, flat.const_data_ptr<float>(), flat.sizes().vec());
    return;
  }
  const at::Tensor flat = tensor.to(at::kDouble).contiguous();
  file.write(path, flat.const_data_ptr<double>(), flat.sizes().vec());
}

void check(const h5::File& file, const std::string& path, const at::Tensor& rotation) {
  const auto fail = [&](const std::string& what) {
    throw Error(fmt::format("{}:{}: {}", file.path().string(), path, what));
  };
  if (rotation.dim() != 3 || rotation.size(1) != rotation.size(2)) {
    fail(fmt::format("expected a rotation of shape [H or 1, d, d], found [{}]",
                     fmt::join(rotation.sizes().vec(), ", ")));
  }
  const at::Tensor product = rotation.transpose(1, 2).matmul(rotation);
  const double off = (product - at::eye(rotation.size(2), at::kDouble)).abs().max().item<double>();
  if (std::isnan(off)) fail("the rotation holds NaN or infinite values");
  if (!(off < 1e-3)) fail(fmt::format("the rotation is not orthogonal: RᵀR is off by {:.3g}", off));
}

RotationSide read_side(const h5::File& file, const std::string& group) {
  RotationSide side;
  if (!file.exists(group)) return side;
  for (const std::string& name : file.children(group)) {
    const std::string path = group + "/" + name;
    const at::Tensor tensor = read_tensor(file, path);
    if (name == "rotation") {
      check(file, path, tensor);
      side.rotation = tensor;
    } else if (name == "center") {
      side.center = tensor.to(at::kFloat);
    } else {
      side.extra[name] = tensor;
    }
  }
  return side;
}

void write_side(h5::File& file, const std::string& group, const RotationSide& side) {
  write_tensor(file, group + "/rotation", side.rotation);
  write_tensor(file, group + "/center", side.center);
  for (const auto& [name, tensor] : side.extra) write_tensor(file, group + "/" + name, tensor);
}

}  // namespace

RotationFile read_rotation_file(const std::filesystem::path& path) {
  const h5::File file = h5::File::open(path);
  const auto found = file.attribute_or<std::string>("/", "schema", "");
  if (found != kRotationSchema) {
    throw Error(fmt::format("{}: expected a file of schema {}, found '{}'", path.string(),
                            kRotationSchema, found));
  }
  if (h5::is_sealed(file, "/") && !h5::is_intact(file, "/")) {
    throw Error(
        fmt::format("{}: its contents are not what was written: the checksum differs; make it anew",
                    path.string()));
  }
  RotationFile result;
  result.method = file.attribute_or<std::string>("/", "method", "");
  result.calibration = file.attribute_or<std::string>("/", "calibration", "");
  for (const std::string& name : file.children("/")) {
    if (!name.starts_with("layer_")) continue;
    int64_t layer = -1;
    const auto parsed = std::from_chars(name.data() + 6, name.data() + name.size(), layer);
    if (parsed.ec != std::errc() || parsed.ptr != name.data() + name.size()) {
      throw Error(fmt::format("{}: group '{}' is no layer_NNN", path.string(), name));
    }
    result.layers[layer] = {read_side(file, "/" + name + "/key"),
                            read_side(file, "/" + name + "/value")};
  }
  return result;
}

void write_rotation_file(const std::filesystem::path& path, const RotationFile& contents) {
  make_folder_of(path);
  Replacement replacement(path);
  h5::File file = h5::File::create(replacement.temp(), path);
  file.set_attribute("/", "schema", std::string_view(kRotationSchema));
  file.set_attribute("/", "method", std::string_view(contents.method));
  file.set_attribute("/", "calibration", std::string_view(contents.calibration));
  for (const auto& [layer, sides] : contents.layers) {
    file.make_group(layer_group(layer));
    write_side(file, layer_group(layer) + "/key", sides.key);
    write_side(file, layer_group(layer) + "/value", sides.value);
  }
  h5::seal(file, "/");
  file.close();
  replacement.commit();
}

}  // namespace kvlab::calibrate
