#include "model/capture.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "base/h5.h"
#include "base/replacement.h"
#include "base/schemas.h"
#include "data/capture_info.h"
#include "quant/rounding.h"

namespace kvlab::model {
namespace {

std::vector<int64_t> chosen_layers(const Decoder& decoder, const CaptureRequest& request) {
  const int64_t count = decoder.config().layers;
  std::vector<int64_t> layers = request.layers;
  if (layers.empty()) {
    layers.resize(static_cast<size_t>(count));
    std::iota(layers.begin(), layers.end(), int64_t{0});
  }
  std::sort(layers.begin(), layers.end());
  layers.erase(std::unique(layers.begin(), layers.end()), layers.end());
  for (const int64_t layer : layers) {
    if (layer >= 0 && layer < count) continue;
    throw Error(
        fmt::format("the model has layers 0 to {}, but layer {} was asked for", count - 1, layer));
  }
  return layers;
}

class Writer {
 public:
  Writer(h5::File& file, DType dtype) : file_(file), dtype_(dtype) {}

  void write(const std::string& dataset, const at::Tensor& x) {
    const at::Tensor stored = x.to(at::kCPU).to(quant::scalar_type(dtype_)).contiguous();
    if (!stored.isfinite().all().item<bool>()) {
      throw Error(fmt::format("{} reaches {:.3g}, which {} cannot hold", dataset,
                              x.abs().max().item<double>(), name_of(dtype_)));
    }
    const std::vector<int64_t> shape = stored.sizes().vec();
    if (dtype_ == DType::fp32) {
      file_.write(dataset, stored.const_data_ptr<float>(), shape);
      return;
    }
    const auto* bits = static_cast<const uint16_t*>(stored.const_data_ptr());
    if (dtype_ == DType::fp16) {
      file_.write_float16(dataset, bits, shape);
    } else {
      file_.write(dataset, bits, shape);
      file_.set_attribute(dataset, "dtype", "bfloat16");
    }
  }

 private:
  h5::File& file_;
  DType dtype_;
};

void write_head(h5::File& file, const Config& config, const at::Tensor& tokens,
                const std::vector<int64_t>& positions, const CaptureRequest& request) {
  for (const auto& [name, value] : request.attributes) file.set_attribute("/", name, value);
  file.set_attribute("/", "schema", kCaptureSchema);
  file.set_attribute("/", "rope", "post");
  file.set_attribute("/", "rope_layout", "half");
  file.set_attribute("/", "rope_theta", config.rope.theta);
  if (const std::string scaling = data::scaling_text(config.rope); !scaling.empty()) {
    file.set_attribute("/", "rope_scaling", scaling);
  }
  file.set_attribute("/", "model_type", config.type);
  file.set_attribute("/", "n_layers", config.layers);
  file.set_attribute("/", "n_q_heads", config.q_heads);
  file.set_attribute("/", "n_kv_heads", config.kv_heads);
  file.set_attribute("/", "head_dim", config.head_dim);
  const at::Tensor ids = tokens.to(at::kInt).contiguous();
  file.write("/tokens", ids.const_data_ptr<int32_t>(), ids.sizes().vec());
  file.write("/positions", std::vector<int32_t>(positions.begin(), positions.end()));
}

}  // namespace

void write_capture(const Decoder& decoder, const at::Tensor& tokens, const CaptureRequest& request,
                   const std::filesystem::path& out,
                   const std::function<void(int64_t layer)>& progress) {
  const std::vector<int64_t> layers = chosen_layers(decoder, request);
  const std::vector<int64_t> positions = data::probe_positions(tokens.size(1), request.probes);
  const at::Tensor rows = at::tensor(positions, at::kLong);
  make_folder_of(out);
  Replacement replacement(out);
  h5::File file = h5::File::create(replacement.temp(), out);
  write_head(file, decoder.config(), tokens, positions, request);
  Writer writer(file, request.dtype);

  std::vector<at::Tensor> hidden;
  for (int64_t b = 0; b < tokens.size(0); ++b) hidden.push_back(decoder.embed(tokens[b]));
  for (int64_t layer = 0; layer <= layers.back(); ++layer) {
    const bool wanted = std::binary_search(layers.begin(), layers.end(), layer);
    std::vector<at::Tensor> q, k, v, k_pre, largest;
    for (at::Tensor& one : hidden) {
      one = decoder.layer(layer, one, 0, [&](const LayerInput& input) {
        if (wanted) {
          // Of all passages on the host, where a GPU has room for one.
          q.push_back(input.q.index_select(1, rows.to(input.q.device())).to(at::kCPU));
          k.push_back(input.k.to(at::kCPU));
          v.push_back(input.v.to(at::kCPU));
          k_pre.push_back(input.k_pre.to(at::kCPU));
          largest.push_back(input.hidden.abs().amax(-1).to(at::kFloat).to(at::kCPU));
        }
        return whole_attention(input);
      });
    }
    if (!wanted) continue;
    const std::string group = "/" + data::layer_group(layer);
    file.make_group(group);
    file.set_attribute(group, "layer", layer);
    const int64_t window = decoder.config().windows[static_cast<size_t>(layer)];
    if (window > 0) file.set_attribute(group, "sliding_window", window);
    writer.write(group + "/q", at::stack(q));
    writer.write(group + "/k", at::stack(k));
    writer.write(group + "/v", at::stack(v));
    writer.write(group + "/k_pre", at::stack(k_pre));
    writer.write(group + "/w_o", decoder.output_matrix(layer));
    const at::Tensor norms = at::stack(largest).contiguous();
    file.write(group + "/hidden_absmax", norms.const_data_ptr<float>(), norms.sizes().vec());
    progress(layer);
  }
  file.close();
  replacement.commit();
}

}  // namespace kvlab::model
