#include "data/capture.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "base/names.h"
#include "data/capture_rows.h"

namespace kvlab::data {
namespace {

at::ScalarType scalar_type(DType type) {
  switch (type) {
    case DType::fp32:
      return at::kFloat;
    case DType::fp16:
      return at::kHalf;
    case DType::bf16:
      return at::kBFloat16;
  }
  return at::kFloat;
}

/// Of a matrix.
Nonfinite nonfinite_of(const at::Tensor& x) {
  const at::Tensor wrong = at::isfinite(x).logical_not().nonzero();
  Nonfinite found{wrong.size(0), {}};
  if (found.count > 0) found.first = {wrong[0][0].item<int64_t>(), wrong[0][1].item<int64_t>()};
  return found;
}

/// What one call of load_capture reads from.
struct Source {
  h5::File file;
  std::string group;
  bool allow_nonfinite;
  std::vector<std::string>* warnings;

  void report(const std::string& dataset, const Nonfinite& found) const {
    if (found.count == 0) return;
    const std::string what =
        fmt::format("{}: {} holds {} {} NaN or Inf, the first at [{}]", file.path().string(),
                    dataset, found.count, found.count == 1 ? "value that is" : "values that are",
                    fmt::join(found.first, ", "));
    if (!allow_nonfinite) {
      throw Error(what + ", expected finite values; allow_nonfinite: true uses them as they are");
    }
    warnings->push_back(what);
  }

  /// Rows of [B, H, N, d]; empty `rows` means all.
  at::Tensor read(const std::string& name, DType type, const std::vector<int64_t>& rows) const {
    const std::string dataset = group + name;
    std::vector<int64_t> shape = file.info(dataset).shape;
    if (!rows.empty()) shape[2] = static_cast<int64_t>(rows.size());
    at::Tensor tensor = at::empty(shape, scalar_type(type));
    report(dataset, read_rows(file, dataset, type, rows, tensor.mutable_data_ptr()));
    return tensor;
  }

  at::Tensor read_w_o() const {
    const std::string dataset = group + "/w_o";
    if (!file.exists(dataset)) return {};
    const std::vector<int64_t> shape = file.info(dataset).shape;
    const DType type = stored_type(file, dataset);
    at::Tensor tensor = at::empty(shape, scalar_type(type));
    file.read_slice_raw(dataset, {0, 0}, shape, tensor.mutable_data_ptr());
    tensor = tensor.to(at::kFloat);
    report(dataset, nonfinite_of(tensor));
    return tensor;
  }
};

/// Throws Unsupported with the reason where the layer lacks a dataset; its shape has been checked.
void require(const Source& source, const std::string& name, const char* what) {
  const std::string dataset = source.group + name;
  if (source.file.exists(dataset)) return;
  throw Unsupported(
      fmt::format("{}: {} is missing: {}", source.file.path().string(), dataset, what));
}

/// What a layer says of its RoPE, else the file.
Rope rope_of(const Source& source, int64_t head_dim) {
  const h5::File& file = source.file;
  const auto holder = [&](const char* name) {
    return file.has_attribute(source.group, name) ? source.group : std::string("/");
  };
  if (auto lacking = lacks_rope(file, source.group)) throw Unsupported(*lacking);
  const auto layout = file.attribute<std::string>(holder("rope_layout"), "rope_layout");
  if (layout == "none") return Rope::from(1.0, "", layout, head_dim);
  return Rope::from(file.attribute<double>(holder("rope_theta"), "rope_theta"),
                    file.attribute_or<std::string>(holder("rope_scaling"), "rope_scaling", ""),
                    layout, head_dim);
}

/// The file's rows of a stretch of tokens; empty means all.
std::vector<int64_t> token_rows(const CaptureInfo& info, const Stretch& stretch) {
  if (stretch == Stretch{}) return {};
  std::vector<int64_t> rows(static_cast<size_t>(info.tokens));
  std::iota(rows.begin(), rows.end(), info.first_token);
  return rows;
}

/// Reads from the file again when it is asked. `tokens`: rows of the stretch, empty for all.
Sample::More more_of(const std::filesystem::path& path, const std::string& group,
                     bool allow_nonfinite, const CaptureInfo& info,
                     const std::vector<int64_t>& tokens) {
  const auto open = [path, group, allow_nonfinite](std::vector<std::string>* unheard) {
    return Source{h5::File::open(path), group, allow_nonfinite, unheard};
  };
  const int64_t all = info.file_tokens;
  Sample::More more;
  if (info.first_token == 0) {  // RoPE counts from there
    more.k_pre = [open, tokens] {
      std::vector<std::string> unheard;
      const Source source = open(&unheard);
      if (auto lacking = lacks_keys_before_rope(source.file, source.group)) {
        throw Unsupported(*lacking);
      }
      return source.read("/k_pre", stored_type(source.file, source.group + "/k_pre"), tokens);
    };
    more.rope = [open, info] {
      std::vector<std::string> unheard;
      return rope_of(open(&unheard), info.head_dim);
    };
  }
  const auto gradient = [open, tokens](const char* name) {
    return [open, tokens, name] {
      std::vector<std::string> unheard;
      const Source source = open(&unheard);
      require(source, name, "values cannot be weighed by the loss");
      return source.read(name, stored_type(source.file, source.group + name), tokens);
    };
  };
  more.grad_k = gradient("/grad_k");
  more.grad_v = gradient("/grad_v");
  more.hidden_absmax = [open, info, all] {
    std::vector<std::string> unheard;
    const Source source = open(&unheard);
    require(source, "/hidden_absmax", "massive activations cannot be found");
    const std::vector<float> values = source.file.read<float>(source.group + "/hidden_absmax");
    const at::Tensor whole = at::tensor(values, at::kFloat).reshape({info.batch, all});
    source.report(source.group + "/hidden_absmax", nonfinite_of(whole));
    return whole.narrow(1, info.first_token, info.tokens);
  };
  more.every_query = [open, info, tokens] {
    std::vector<std::string> unheard;
    const Source source = open(&unheard);
    if (info.probes != info.tokens) {
      throw Unsupported(
          fmt::format("{}: holds the queries of {} of {}: attention that decides which "
                      "tokens stay needs all of them (probes: all)",
                      source.file.path().string(), info.probes, counted(info.tokens, "token")));
    }
    return source.read("/q", info.dtype, tokens);
  };
  return more;
}

/// Indices of the queries to use, of those in the stretch.
std::vector<int64_t> choose_probes(const Source& source, const CaptureInfo& info,
                                   const ProbeChoice& probes) {
  const std::vector<int64_t> asked = probe_positions(info.tokens, probes);
  std::vector<int64_t> rows = indices_of(asked, info.positions);
  if (rows.empty()) {
    source.warnings->push_back(fmt::format(
        "{}: /positions lacks some of the {} asked for, so all {} stored ones are used",
        source.file.path().string(), counted(std::ssize(asked), probes.placement + " probe"),
        info.positions.size()));
  }
  if (rows.empty()) {
    rows.resize(info.positions.size());
    std::iota(rows.begin(), rows.end(), int64_t{0});
  }
  return rows;
}

void warn_of_sliding_window(const Source& source, int64_t tokens) {
  if (!source.file.has_attribute(source.group, "sliding_window")) return;
  const auto window = source.file.attribute<int64_t>(source.group, "sliding_window");
  if (window >= tokens) return;
  source.warnings->push_back(
      fmt::format("{}: in the model {} reads the last {} tokens only, here all {}",
                  source.file.path().string(), source.group, window, tokens));
}

}  // namespace

Sample load_capture(const std::filesystem::path& path, int64_t layer, const ProbeChoice& probes,
                    bool allow_nonfinite, std::vector<std::string>* warnings,
                    const Stretch& stretch) {
  const Source source{h5::File::open(path), "/" + layer_group(layer), allow_nonfinite, warnings};
  const CaptureInfo info = read_capture_info(source.file, stretch);
  if (!std::binary_search(info.layers.begin(), info.layers.end(), layer)) {
    throw Error(fmt::format("{}: holds no layer {}, expected one of {}", path.string(), layer,
                            fmt::join(info.layers, ", ")));
  }
  warn_of_sliding_window(source, info.tokens);
  std::vector<int64_t> rows = choose_probes(source, info, probes);
  std::vector<int64_t> positions;
  for (int64_t& row : rows) {
    positions.push_back(info.positions[static_cast<size_t>(row)]);
    row += info.first_query;
  }
  Sample sample;
  sample.k = source.read("/k", info.dtype, token_rows(info, stretch));
  sample.v = source.read("/v", info.dtype, token_rows(info, stretch));
  sample.q = source.read("/q", info.dtype, rows);
  sample.w_o = source.read_w_o();
  sample.positions = at::tensor(positions, at::kLong);
  sample.dtype = info.dtype;
  sample.layer = layer;
  sample.file = path.string();
  sample.more = more_of(path, source.group, allow_nonfinite, info, token_rows(info, stretch));
  return sample;
}

}  // namespace kvlab::data
