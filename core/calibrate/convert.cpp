#include "calibrate/convert.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <map>

#include "base/error.h"
#include "base/schemas.h"
#include "base/utf8.h"
#include "calibrate/torch_file.h"
#include "data/safetensors.h"

namespace kvlab::calibrate {
namespace {

using torch_file::Value;

RotationSide& side_of(RotationLayer& layer, const std::string& side) {
  return side == "key" ? layer.key : layer.value;
}

at::ScalarType type_of(const ConvertOptions& options) {
  return options.dtype == "fp64"   ? at::kDouble
         : options.dtype == "fp16" ? at::kHalf
         : options.dtype == "bf16" ? at::kBFloat16
                                   : at::kFloat;
}

/// The same of a tensor beside rotation and centre: channels' numbers are exact in float64 alone.
at::ScalarType type_of(const std::string& extra, const ConvertOptions& options) {
  return extra == "order" ? at::kDouble : type_of(options);
}

/// One layer's place in a file, for messages.
struct Place {
  const std::filesystem::path& path;
  std::string name;

  [[noreturn]] void fail(const std::string& what) const {
    throw Error(fmt::format("{}: {} {}", path.string(), name, what));
  }
};

/// float64 [1 or H, d, d], orthogonal to 1e-3.
at::Tensor checked_rotation(const at::Tensor& stored, const Place& place,
                            std::vector<std::string>& notes) {
  if (!stored.is_floating_point()) {
    place.fail(fmt::format("holds {}, expected float64, float32, float16 or bfloat16",
                           c10::toString(stored.scalar_type())));
  }
  at::Tensor r = (stored.dim() == 2 ? stored.unsqueeze(0) : stored).to(at::kDouble);
  if (r.dim() != 3 || r.size(1) != r.size(2) || r.size(0) < 1 || r.size(1) < 1) {
    place.fail(fmt::format("has shape [{}], expected [d, d] or [H, d, d]",
                           fmt::join(stored.sizes().vec(), ", ")));
  }
  const auto off = [&] {
    const at::Tensor product = r.transpose(1, 2).matmul(r);
    return (product - at::eye(r.size(2), at::kDouble)).abs().max().item<double>();
  };
  constexpr double kOrthogonal = 1e-3;
  const double allowed = stored.scalar_type() == at::kBFloat16 ? 2e-2
                         : stored.scalar_type() == at::kHalf   ? 4e-3
                                                               : kOrthogonal;
  const double found = off();
  if (!(found < allowed)) {
    place.fail(fmt::format("is not orthogonal: RᵀR is off by {:.3g}, at most {:.3g} is rounding",
                           found, allowed));
  }
  if (found >= kOrthogonal) {
    const at::Tensor identity = at::eye(r.size(2), at::kDouble);
    for (int i = 0; i < 3; ++i) {  // Newton–Schulz squares the error each time
      r = r.matmul(identity * 1.5 - r.transpose(1, 2).matmul(r) * 0.5);
    }
    notes.push_back(
        fmt::format("{}: {} was off orthogonal by {:.3g} and is pulled to the nearest "
                    "orthogonal matrix",
                    place.path.string(), place.name, found));
  }
  return r;
}

void take(RotationSide& side, const std::string& name, const at::Tensor& tensor, const Place& place,
          std::vector<std::string>& notes) {
  if (name == "rotation") {
    if (side.rotation.defined()) place.fail("is there twice");
    side.rotation = checked_rotation(tensor, place, notes);
    return;
  }
  if (name == "center") {
    if (side.center.defined()) place.fail("is there twice");
    side.center = tensor.to(at::kFloat);
    return;
  }
  // It becomes a dataset's name.
  const bool plain = std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  });
  if (name.empty() || !plain) place.fail("has a name that is not made of letters, digits and _");
  if (!side.extra.emplace(name, tensor.to(at::kDouble)).second) place.fail("is there twice");
}

/// Members that are tensors wherever they are there.
bool is_tensor_name(const std::string& name) {
  static const std::array names = {"rotation", "center", "eigenvalues", "basis",
                                   "order",    "clip",   "codebook"};
  return std::find(names.begin(), names.end(), name) != names.end();
}

/// The text of a dict's entry; empty where there is none.
std::string text_of(const Value& dict, const std::string& key) {
  const Value* found = dict.find(key);
  return found != nullptr ? found->text : "";
}

/// What a .pt rotates: as asked for, else as the file says (kvlab's own say it as `side`, those of
/// OSCAR by their name and objective).
std::string side_of_pt(const std::filesystem::path& path, const Value& file,
                       const ConvertOptions& options, std::vector<std::string>& notes) {
  const std::string name = path.filename().string();
  const std::string objective = text_of(file, "objective");
  const auto begins = [](const std::string& text, std::initializer_list<const char*> with) {
    return std::any_of(with.begin(), with.end(),
                       [&](const char* one) { return text.starts_with(one); });
  };
  struct Sign {
    std::string what, side;
  };
  std::vector<Sign> signs;
  if (!options.side.empty()) signs.push_back({"--side", options.side});
  const std::string own = text_of(file, "side");
  if (own == "key" || own == "value") signs.push_back({"its side", own});
  if (begins(name, {"k_"})) signs.push_back({"its name", "key"});
  if (begins(name, {"v_"})) signs.push_back({"its name", "value"});
  const std::string said = fmt::format("its objective '{}'", readable(objective));
  if (begins(objective, {"qqt", "ktk"})) signs.push_back({said, "key"});
  if (begins(objective, {"sst", "vtv"})) signs.push_back({said, "value"});
  if (signs.empty()) {
    throw Error(
        fmt::format("{}: neither its name (k_…, v_…) nor its objective '{}' says whether it "
                    "rotates keys or values: add --side key or --side value",
                    path.string(), readable(objective)));
  }
  for (const Sign& sign : signs) {
    if (sign.side == signs[0].side) continue;
    notes.push_back(fmt::format("{}: taken for {}s, as {} says; {} says {}s", path.string(),
                                signs[0].side, signs[0].what, sign.what, sign.side));
  }
  return signs[0].side;
}

/// A side whose tensors go together.
void check_whole(const RotationSide& side, const std::filesystem::path& path,
                 const std::string& prefix) {
  if (const auto fault = fault_of(side)) {
    throw Error(fmt::format("{}: {}{} {}", path.string(), prefix, fault->tensor, fault->what));
  }
}

RotationFile read_pt(const std::filesystem::path& path, const ConvertOptions& options,
                     std::vector<std::string>& notes) {
  const Value file = torch_file::read(path);
  const auto fail = [&](const std::string& what) {
    throw Error(fmt::format("{}: {}", path.string(), what));
  };
  if (file.kind != Value::Kind::dict) {
    fail("holds " + file.describe() + ", expected a dict with 'layers'");
  }
  const Value* version = file.find("format_version");
  if (version != nullptr && (version->kind != Value::Kind::integer || version->integer != 1)) {
    fail("has format_version = " + version->describe() + ", known is 1");
  }
  const Value* layers = file.find("layers");
  if (layers == nullptr || layers->kind != Value::Kind::dict || layers->members.empty()) {
    fail("holds no dict 'layers' with an entry a layer");
  }
  const std::string side = side_of_pt(path, file, options, notes);
  RotationFile result;
  result.method = text_of(file, "objective");
  result.calibration = text_of(file, "calibration");
  for (const auto& [number, entry] : layers->members) {
    if (number.kind != Value::Kind::integer || number.integer < 0) {
      fail("has the layer " + number.describe() + ", expected a whole number");
    }
    const Place place{path, fmt::format("layer {}", number.integer)};
    if (entry.kind != Value::Kind::dict) place.fail("is " + entry.describe() + ", expected a dict");
    const Value* id = entry.find("layer_id");
    if (id != nullptr && (id->kind != Value::Kind::integer || id->integer != number.integer)) {
      place.fail("says of itself that it is " + id->describe());
    }
    const Value* rotation = entry.find("rotation");
    if (rotation == nullptr || rotation->kind != Value::Kind::tensor) {
      place.fail("has no tensor 'rotation'");
    }
    if (result.layers.contains(number.integer)) place.fail("is there twice");
    RotationSide& target = side_of(result.layers[number.integer], side);
    for (const auto& [name, member] : entry.members) {
      if (name.kind != Value::Kind::text) continue;
      const Place whose{path, place.name + "'s " + readable(name.text)};
      if (member.kind == Value::Kind::tensor) {
        take(target, name.text, member.tensor, whose, notes);
      } else if (is_tensor_name(name.text)) {
        whose.fail("is " + member.describe() + ", expected a tensor");
      }
    }
    check_whole(target, path, place.name + "'s ");
  }
  return result;
}

void write_pt(const std::filesystem::path& path, const RotationFile& file,
              const ConvertOptions& options) {
  std::string side = options.side;
  if (side.empty()) {
    const bool keys = std::any_of(file.layers.begin(), file.layers.end(),
                                  [](const auto& one) { return is_there(one.second.key); });
    const bool values = std::any_of(file.layers.begin(), file.layers.end(),
                                    [](const auto& one) { return is_there(one.second.value); });
    if (keys && values) {
      throw Error(
          fmt::format("{}: a .pt holds one side, and there are both: add --side key or "
                      "--side value",
                      path.string()));
    }
    side = keys ? "key" : "value";
  }
  std::vector<torch_file::Member> layers;
  bool per_head = false;
  for (const auto& [number, layer] : file.layers) {
    const RotationSide& from = side == "key" ? layer.key : layer.value;
    if (!from.rotation.defined()) {
      throw Error(
          fmt::format("layer {} has no {} rotation to write to {}", number, side, path.string()));
    }
    const bool alone = from.rotation.size(0) == 1;
    per_head |= !alone;
    const auto in_type = [&](const at::Tensor& x) { return Value::of(x.to(type_of(options))); };
    std::vector<torch_file::Member> entry = {
        {Value::of("layer_id"), Value::of(number)},
        {Value::of("rotation"), in_type(alone ? from.rotation[0] : from.rotation)}};
    if (from.center.defined()) entry.push_back({Value::of("center"), in_type(from.center)});
    for (const auto& [name, tensor] : from.extra) {
      entry.push_back({Value::of(name), Value::of(tensor.to(type_of(name, options)))});
    }
    layers.push_back({Value::of(number), Value::dict(std::move(entry))});
  }
  torch_file::write(
      path, Value::dict({{Value::of("format_version"), Value::of(int64_t{1})},
                         {Value::of("objective"), Value::of(file.method)},
                         {Value::of("side"), Value::of(side)},
                         {Value::of("calibration"), Value::of(file.calibration)},
                         {Value::of("source_grouping"), Value::of(per_head ? "head" : "layer")},
                         {Value::of("layers"), Value::dict(std::move(layers))}}));
}

RotationFile read_safetensors(const std::filesystem::path& path, std::vector<std::string>& notes) {
  const data::Safetensors contents = data::Safetensors::open(path);
  RotationFile result;
  const auto text = [&](const char* key) {
    const auto found = contents.metadata.find(key);
    return found == contents.metadata.end() ? std::string() : found->second;
  };
  result.method = text("method");
  result.calibration = text("calibration");
  for (const auto& [name, entry] : contents.entries) {
    // layers.N.key.rotation
    const Place place{path, "tensor '" + readable(name) + "'"};
    constexpr std::string_view kLayers = "layers.";
    int64_t number = -1;
    const char* const end = name.data() + name.size();
    const char* rest = name.data();
    if (name.starts_with(kLayers)) {
      rest = std::from_chars(name.data() + kLayers.size(), end, number).ptr;
    }
    const std::string_view after(rest, static_cast<size_t>(end - rest));
    const std::string side = after.starts_with(".key.")     ? "key"
                             : after.starts_with(".value.") ? "value"
                                                            : "";
    if (number < 0 || side.empty() || !name.starts_with(fmt::format("layers.{}.", number))) {
      place.fail("is not named layers.N.key.… or layers.N.value.…");
    }
    if (!entry.tensor.defined()) {
      place.fail("has type " + readable(entry.type) + ", expected F64, F32, F16, BF16 or I64");
    }
    // A copy: the file may be written over while the tensor is held.
    take(side_of(result.layers[number], side), std::string(after.substr(side.size() + 2)),
         entry.tensor.clone(), place, notes);
  }
  if (result.layers.empty()) throw Error(path.string() + ": holds no tensor layers.N.key.rotation");
  for (const auto& [number, layer] : result.layers) {
    check_whole(layer.key, path, fmt::format("layers.{}.key.", number));
    check_whole(layer.value, path, fmt::format("layers.{}.value.", number));
  }
  return result;
}

void write_safetensors(const std::filesystem::path& path, const RotationFile& file,
                       const ConvertOptions& options) {
  std::map<std::string, at::Tensor> tensors;
  for (const auto& [number, layer] : file.layers) {
    for (const auto& [name, side] :
         {std::pair{"key", &layer.key}, std::pair{"value", &layer.value}}) {
      if (!options.side.empty() && options.side != name) continue;
      const std::string prefix = fmt::format("layers.{}.{}.", number, name);
      const auto put = [&](const std::string& what, const at::Tensor& x) {
        if (x.defined()) tensors[prefix + what] = x.to(type_of(options));
      };
      put("rotation", side->rotation);
      put("center", side->center);
      for (const auto& [what, tensor] : side->extra) {
        tensors[prefix + what] = tensor.to(type_of(what, options));
      }
    }
  }
  if (tensors.empty()) throw Error(fmt::format("there is nothing to write to {}", path.string()));
  data::write_safetensors(
      path,
      {{"format", kRotationSchema}, {"method", file.method}, {"calibration", file.calibration}},
      tensors);
}

RotationFile mapped(const RotationFile& file, const ConvertOptions& options,
                    const std::filesystem::path& path) {
  if (options.layers.empty()) return file;
  RotationFile result{.method = file.method, .calibration = file.calibration, .layers = {}};
  for (const auto& [from, to] : options.layers) {
    const auto found = file.layers.find(from);
    if (found == file.layers.end()) {
      std::vector<int64_t> held;
      for (const auto& [number, layer] : file.layers) held.push_back(number);
      throw Error(fmt::format("{}: has no layer {}, it has {}", path.string(), from,
                              fmt::join(held, ", ")));
    }
    if (!result.layers.emplace(to, found->second).second) {
      throw Error(fmt::format("{}: two layers would become layer {}", path.string(), to));
    }
  }
  return result;
}

[[noreturn]] void wrong_suffix(const std::filesystem::path& path) {
  throw Error(fmt::format("{}: its suffix must be .h5, .pt or .safetensors", path.string()));
}

}  // namespace

RotationFile read_rotations(const std::filesystem::path& path, const ConvertOptions& options,
                            std::vector<std::string>& notes) {
  const auto read = [&] {
    const std::string suffix = path.extension().string();
    if (suffix == ".pt") return read_pt(path, options, notes);
    if (suffix == ".safetensors") return read_safetensors(path, notes);
    if (suffix == ".h5") return read_rotation_file(path);
    wrong_suffix(path);
  };
  const RotationFile file = read();
  const bool holds = std::any_of(file.layers.begin(), file.layers.end(), [](const auto& one) {
    return is_there(one.second.key) || is_there(one.second.value);
  });
  if (!holds) throw Error(fmt::format("{}: holds nothing that was learned", path.string()));
  return mapped(file, options, path);
}

void write_rotations(const std::filesystem::path& path, const RotationFile& file,
                     const ConvertOptions& options) {
  const std::string suffix = path.extension().string();
  if (suffix == ".pt") return write_pt(path, file, options);
  if (suffix == ".safetensors") return write_safetensors(path, file, options);
  if (suffix != ".h5") wrong_suffix(path);
  if (!options.dtype.empty() && options.dtype != "fp64") {
    throw Error(
        fmt::format("{}: kvlab.rotation/1 holds float64, --dtype is for .pt and "
                    ".safetensors",
                    path.string()));
  }
  write_rotation_file(path, file);
}

void check_model(const RotationFile& file, int64_t kv_heads, int64_t head_dim,
                 const std::vector<int64_t>& layers) {
  for (const auto& [number, layer] : file.layers) {
    if (!layers.empty() && std::find(layers.begin(), layers.end(), number) == layers.end()) {
      throw Error(
          fmt::format("layer {} is not one of the model's: {}", number, fmt::join(layers, ", ")));
    }
    for (const RotationSide* side : {&layer.key, &layer.value}) {
      const auto wrong = [&](const char* what, const at::Tensor& x) {
        throw Error(
            fmt::format("layer {}: the {} is [{}], the model has {} KV heads of {} channels",
                        number, what, fmt::join(x.sizes().vec(), ", "), kv_heads, head_dim));
      };
      const auto fits = [&](const at::Tensor& r) {
        return r.size(1) == head_dim && (r.size(0) == 1 || r.size(0) == kv_heads);
      };
      if (side->rotation.defined() && !fits(side->rotation)) wrong("rotation", side->rotation);
      const auto basis = side->extra.find("basis");
      if (basis != side->extra.end() && !fits(basis->second)) wrong("basis", basis->second);
      if (side->center.defined() && side->center.sizes() != at::IntArrayRef({kv_heads, head_dim})) {
        wrong("centre", side->center);
      }
    }
  }
}

}  // namespace kvlab::calibrate
