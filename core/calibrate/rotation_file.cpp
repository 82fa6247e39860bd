#include "calibrate/rotation_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>

#include "base/error.h"
#include "base/h5.h"
#include "base/h5_digest.h"
#include "base/replacement.h"
#include "base/schemas.h"

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

RotationSide read_side(const h5::File& file, const std::string& group) {
  RotationSide side;
  if (!file.exists(group)) return side;
  for (const std::string& name : file.children(group)) {
    const std::string path = group + "/" + name;
    const at::Tensor tensor = read_tensor(file, path);
    if (name == "rotation") {
      side.rotation = tensor;
    } else if (name == "center") {
      side.center = tensor.to(at::kFloat);
    } else {
      side.extra[name] = tensor;
    }
  }
  if (const auto fault = fault_of(side)) {
    throw Error(fmt::format("{}:{}/{}: the {} {}", file.path().string(), group, fault->tensor,
                            fault->tensor, fault->what));
  }
  return side;
}

void write_side(h5::File& file, const std::string& group, const RotationSide& side) {
  write_tensor(file, group + "/rotation", side.rotation);
  write_tensor(file, group + "/center", side.center);
  for (const auto& [name, tensor] : side.extra) write_tensor(file, group + "/" + name, tensor);
}

/// What is wrong with the shapes of a side, given its rotation or basis.
std::optional<RotationFault> wrong_shape(const RotationSide& side) {
  const auto fault = [](const std::string& name, const char* expected, const at::Tensor& found) {
    return RotationFault{name, fmt::format("has shape [{}], expected {}",
                                           fmt::join(found.sizes().vec(), ", "), expected)};
  };
  const auto basis = side.extra.find("basis");
  const bool has_basis = basis != side.extra.end();
  if (side.rotation.defined() && has_basis) {
    return RotationFault{"basis", "stands beside a rotation: a side has one of them"};
  }
  const at::Tensor matrix = has_basis ? basis->second : side.rotation;
  if (matrix.defined() && (matrix.dim() != 3 || matrix.size(1) != matrix.size(2) ||
                           matrix.size(0) < 1 || matrix.size(1) < 1)) {
    return fault(has_basis ? "basis" : "rotation", "[H or 1, d, d]", matrix);
  }
  const auto is_channels = [&](const at::Tensor& x) {
    return x.numel() > 0 && (!matrix.defined() || x.size(-1) == matrix.size(2));
  };
  // A matrix of a layer serves any number of heads.
  const auto is_of_heads = [&](const at::Tensor& x) {
    return x.dim() == 2 && is_channels(x) &&
           (!matrix.defined() || matrix.size(0) == 1 || x.size(0) == matrix.size(0));
  };
  if (side.center.defined() && !is_of_heads(side.center)) {
    return fault("center", "[H, d] of the same heads and channels as the matrix", side.center);
  }
  const auto values = side.extra.find("eigenvalues");
  if (values == side.extra.end()) return std::nullopt;
  const at::Tensor& x = values->second;
  if ((x.dim() == 1 && is_channels(x)) || is_of_heads(x)) return std::nullopt;
  return fault("eigenvalues", "[d] or [H, d] of the same channels as the matrix", x);
}

/// Whether these are 0 … n−1 in some order.
bool is_permutation(const at::Tensor& order) {
  return order.dim() == 1 && order.numel() > 0 &&
         std::get<0>(order.to(at::kDouble).sort()).equal(at::arange(order.numel(), at::kDouble));
}

}  // namespace

bool is_there(const RotationSide& side) {
  return side.rotation.defined() || side.center.defined() || !side.extra.empty();
}

std::optional<RotationFault> fault_of(const RotationSide& side) {
  std::map<std::string, at::Tensor> all = side.extra;
  if (side.rotation.defined()) all["rotation"] = side.rotation;
  if (side.center.defined()) all["center"] = side.center;
  for (const auto& [name, tensor] : all) {
    if (tensor.numel() > 0 && !at::isfinite(tensor).all().item<bool>()) {
      return RotationFault{name, "holds NaN or infinite values"};
    }
  }
  if (auto fault = wrong_shape(side)) return fault;
  if (side.rotation.defined()) {
    const at::Tensor product = side.rotation.transpose(1, 2).matmul(side.rotation);
    const at::Tensor one = at::eye(product.size(2), at::kDouble);
    const double off = (product - one).abs().max().item<double>();
    if (!(off < 1e-3)) {
      return RotationFault{"rotation", fmt::format("is not orthogonal: RᵀR is off by {:.3g}", off)};
    }
  }
  if (const auto basis = all.find("basis"); basis != all.end()) {
    const at::Tensor sizes = at::linalg_svdvals(basis->second.to(at::kDouble));  // descending
    constexpr double kLeast = 1e-12;
    if (sizes.select(-1, -1).le(sizes.select(-1, 0) * kLeast).any().item<bool>()) {
      return RotationFault{"basis", "has no inverse"};
    }
  }
  if (const auto order = all.find("order"); order != all.end() && !is_permutation(order->second)) {
    return RotationFault{"order", "is no order of channels: each of 0 … n−1 once"};
  }
  return std::nullopt;
}

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
    if (result.layers.contains(layer)) {
      throw Error(fmt::format("{}: layer {} is there twice", path.string(), layer));
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
