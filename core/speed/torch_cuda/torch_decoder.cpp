#include "torch_decoder.h"

#include <ATen/ATen.h>
#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/CUDAEvent.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/core/InferenceMode.h>
#include <c10/cuda/CUDAGuard.h>

#include <cmath>
#include <functional>
#include <memory>
#include <stdexcept>
#include <vector>

#include "kvlab/kernels/decoder.h"
#include "library.h"
#include "sdpa.h"

namespace kvlab::torch_cuda {
namespace {

constexpr float kNormEps = 1e-6f;

namespace cuda = kernels::cuda;

at::TensorOptions on_gpu(at::ScalarType type) {
  return at::TensorOptions().device(at::kCUDA).dtype(type);
}

/// A matrix [out, in] that keeps the size of what it multiplies.
at::Tensor random_matrix(int64_t out, int64_t in) {
  return at::empty({out, in}, on_gpu(at::kBFloat16))
      .normal_(0, 1 / std::sqrt(static_cast<double>(in)));
}

struct Layer {
  at::Tensor attention_norm, qkv, qk_norm, o, mlp_norm, gate_up, down;
};

cuda::Stream current_stream() { return c10::cuda::getCurrentCUDAStream().stream(); }

struct Decoder {
  KvlabDecoderShape shape;
  at::Tensor embedding, last_norm, output;
  at::Tensor turn;  // float32 [dim/2, 2]: RoPE at one position; others would take the same time
  std::vector<Layer> layers;

  explicit Decoder(const KvlabDecoderShape& of) : shape(of) {
    const auto ones = [&](int64_t n) { return at::ones({n}, on_gpu(at::kBFloat16)); };
    const int64_t all_heads = of.q_heads + 2 * of.kv_heads;
    embedding = at::empty({of.vocabulary, of.hidden}, on_gpu(at::kBFloat16)).normal_();
    output = random_matrix(of.vocabulary, of.hidden);
    last_norm = ones(of.hidden);
    const at::Tensor angles = at::arange(of.dim / 2, on_gpu(at::kFloat));
    turn = at::stack({angles.cos(), angles.sin()}, -1).contiguous();
    for (int i = 0; i < of.layers; ++i) {
      layers.push_back({ones(of.hidden), random_matrix(all_heads * of.dim, of.hidden),
                        at::ones({of.q_heads + of.kv_heads, of.dim}, on_gpu(at::kFloat)),
                        random_matrix(of.hidden, int64_t{of.q_heads} * of.dim), ones(of.hidden),
                        random_matrix(2 * int64_t{of.intermediate}, of.hidden),
                        random_matrix(of.hidden, of.intermediate)});
    }
  }

  at::Tensor norm(const at::Tensor& x, const at::Tensor& weight) const {
    at::Tensor out = at::empty_like(x);
    cuda::rms_norm(x.const_data_ptr(), weight.const_data_ptr(), out.mutable_data_ptr(),
                   static_cast<int>(x.size(0)), static_cast<int>(x.size(1)), kNormEps,
                   current_stream());
    return out;
  }

  /// Norm and RoPE of a layer's heads [batch, q_heads + 2 kv_heads, dim], keys in place: the
  /// queries [batch, q_heads, dim].
  at::Tensor queries(const Layer& layer, const at::Tensor& heads) const {
    const auto batch = heads.size(0);
    at::Tensor query = at::empty({batch, shape.q_heads, shape.dim}, heads.options());
    cuda::norm_and_turn({heads.mutable_data_ptr(), layer.qk_norm.const_data_ptr<float>(),
                         turn.const_data_ptr<float>(), query.mutable_data_ptr(),
                         static_cast<int>(batch), shape.q_heads, shape.kv_heads, shape.dim},
                        kNormEps, current_stream());
    return query;
  }

  /// silu(gate) · up of rows [gate, up].
  at::Tensor gated(const at::Tensor& gate_up) const {
    at::Tensor out = at::empty({gate_up.size(0), shape.intermediate}, gate_up.options());
    cuda::gate(gate_up.const_data_ptr(), out.mutable_data_ptr(), static_cast<int>(out.size(0)),
               shape.intermediate, current_stream());
    return out;
  }
};

std::unique_ptr<Decoder>& decoder() {
  static std::unique_ptr<Decoder> made;
  return made;
}

const Decoder& made_decoder() {
  if (!decoder()) throw std::logic_error("no decoder was made");
  return *decoder();
}

/// Attention of one layer: its index, queries [batch, q_heads, dim], and heads [batch, q_heads + 2
/// kv_heads, dim] of which keys and values count; to [batch, q_heads, dim].
using Attention = std::function<at::Tensor(int, const at::Tensor&, const at::Tensor&)>;

/// One token a sequence through the model: tokens int64 [batch] become the most likely next ones.
void step(const Decoder& model, const at::Tensor& tokens, const Attention& attention) {
  const KvlabDecoderShape& shape = model.shape;
  const int64_t batch = tokens.size(0);
  at::Tensor hidden = model.embedding.index_select(0, tokens);
  for (size_t i = 0; i < model.layers.size(); ++i) {
    const Layer& layer = model.layers[i];
    const at::Tensor heads =
        model.norm(hidden, layer.attention_norm).mm(layer.qkv.t()).view({batch, -1, shape.dim});
    const at::Tensor query = model.queries(layer, heads);
    hidden.addmm_(attention(static_cast<int>(i), query, heads).view({batch, -1}), layer.o.t());
    const at::Tensor wide = model.norm(hidden, layer.mlp_norm).mm(layer.gate_up.t());
    hidden.addmm_(model.gated(wide), layer.down.t());
  }
  tokens.copy_(model.norm(hidden, model.last_norm).mm(model.output.t()).argmax(-1));
}

/// bf16 tokens of all layers and libtorch's attention over them.
class Unpacked {
 public:
  Unpacked(const std::string& kind, const KvlabDecoderShape& shape, int64_t batch, int64_t tokens)
      : shape_(shape), batch_(batch), tokens_(tokens) {
    choose_sdpa(kind);
    for (int i = 0; i < shape.layers; ++i) {
      layers_.push_back(
          at::empty({2, batch, shape.kv_heads, tokens, shape.dim}, on_gpu(at::kBFloat16))
              .normal_());
    }
  }

  at::Tensor attend(int layer, const at::Tensor& query) const {
    const at::Tensor& cache = layers_[static_cast<size_t>(layer)];
    return one_token_attention(query.unsqueeze(2), cache[0], cache[1])
        .reshape({batch_, shape_.q_heads, shape_.dim});
  }

  at::Tensor append_and_attend(int layer, const at::Tensor& query, const at::Tensor& heads) const {
    const at::Tensor& cache = layers_[static_cast<size_t>(layer)];
    cache.select(3, tokens_ - 1)
        .copy_(heads.narrow(1, shape_.q_heads, 2 * shape_.kv_heads)
                   .view({batch_, 2, shape_.kv_heads, shape_.dim})
                   .transpose(0, 1));
    return attend(layer, query);
  }

 private:
  KvlabDecoderShape shape_;
  int64_t batch_, tokens_;
  std::vector<at::Tensor> layers_;  // [2, batch, kv_heads, tokens, dim]: keys and values
};

/// `work` after kvlab_torch_warm_steps runs, as a CUDA graph that is sent `samples` times, each
/// behind the last: nanoseconds from one's end to the next one's.
void time_graph(const std::function<void()>& work, int samples, double* nanoseconds,
                std::int64_t* used) {
  for (int i = 1; i < kvlab_torch_warm_steps; ++i) work();
  c10::cuda::device_synchronize();
  at::cuda::CUDAGraph graph;
  graph.capture_begin({0, 0}, cudaStreamCaptureModeThreadLocal);
  try {
    work();
  } catch (...) {
    graph.capture_end();
    throw;
  }
  graph.capture_end();
  graph.replay();  // the last of the warm steps
  std::vector<at::cuda::CUDAEvent> events;
  for (int i = 0; i <= samples; ++i) events.emplace_back(cudaEventDefault);
  events[0].record();
  for (int i = 0; i < samples; ++i) {
    graph.replay();
    events[static_cast<size_t>(i) + 1].record();
  }
  c10::cuda::device_synchronize();
  for (int i = 0; i < samples; ++i) {
    const auto at = static_cast<size_t>(i);
    nanoseconds[i] = 1e6 * static_cast<double>(events[at].elapsed_time(events[at + 1]));
  }
  if (used != nullptr) {
    size_t free = 0, total = 0;
    C10_CUDA_CHECK(cudaMemGetInfo(&free, &total));
    *used = static_cast<std::int64_t>(total - free);
  }
}

at::Tensor first_tokens(const Decoder& model, int64_t batch) {
  return at::randint(model.shape.vocabulary, {batch}, on_gpu(at::kLong));
}

/// Times steps, after a look at what one of them makes.
void time_steps(int batch, int steps, const Attention& attention, double* nanoseconds,
                std::int64_t* used) {
  const Decoder& model = made_decoder();
  const at::Tensor tokens = first_tokens(model, batch);
  bool is_first = true;
  time_graph(
      [&] {
        step(model, tokens, [&](int layer, const at::Tensor& query, const at::Tensor& heads) {
          at::Tensor output = attention(layer, query, heads);
          if (is_first && !output.isfinite().all().item<bool>()) {
            throw std::runtime_error("attention of layer " + std::to_string(layer) +
                                     " gives numbers that are not finite");
          }
          return output;
        });
        is_first = false;
      },
      steps, nanoseconds, used);
}

}  // namespace
}  // namespace kvlab::torch_cuda

using namespace kvlab::torch_cuda;

int kvlab_torch_make_decoder(const KvlabDecoderShape* shape) {
  return guarded([&] {
    const c10::InferenceMode no_gradients;
    decoder().reset();
    decoder() = std::make_unique<Decoder>(*shape);
  });
}

int kvlab_torch_memory(std::int64_t* free, std::int64_t* total) {
  return guarded([&] {
    clean_up();
    size_t now = 0, all = 0;
    C10_CUDA_CHECK(cudaMemGetInfo(&now, &all));
    *free = static_cast<std::int64_t>(now);
    *total = static_cast<std::int64_t>(all);
  });
}

int kvlab_torch_normal(std::int64_t count, const void** numbers) {
  return guarded([&] {
    const c10::InferenceMode no_gradients;
    static at::Tensor held;
    held.reset();
    if (numbers == nullptr) return;
    held = at::empty({count}, on_gpu(at::kBFloat16)).normal_();
    *numbers = held.const_data_ptr();
  });
}

int kvlab_torch_time_steps(const KvlabStepCache* cache, int batch, int steps, double* nanoseconds,
                           std::int64_t* used) {
  return guarded([&] {
    const c10::InferenceMode no_gradients;
    const c10::cuda::CUDAStreamGuard guard(own_stream());
    const c10::cuda::CUDAStream stream = c10::cuda::getCurrentCUDAStream();
    const KvlabDecoderShape& shape = made_decoder().shape;
    time_steps(
        batch, steps,
        [&](int layer, const at::Tensor& query, const at::Tensor& heads) {
          if (layer == 0) cache->begin(cache->context, stream.stream());
          at::Tensor output = at::empty_like(query);
          const KvlabLayerStep given = {
              layer,
              query.const_data_ptr(),
              heads.select(1, shape.q_heads).const_data_ptr(),
              heads.select(1, shape.q_heads + shape.kv_heads).const_data_ptr(),
              heads.stride(0),
              output.mutable_data_ptr(),
              stream.stream()};
          cache->attend(cache->context, &given);
          return output;
        },
        nanoseconds, used);
  });
}

int kvlab_torch_time_unpacked(const char* kind, int batch, int tokens, int steps,
                              double* nanoseconds, std::int64_t* used) {
  return guarded([&] {
    const c10::InferenceMode no_gradients;
    const c10::cuda::CUDAStreamGuard guard(own_stream());
    const Unpacked cache(kind, made_decoder().shape, batch, tokens);
    time_steps(
        batch, steps,
        [&](int layer, const at::Tensor& query, const at::Tensor& heads) {
          return cache.append_and_attend(layer, query, heads);
        },
        nanoseconds, used);
  });
}

int kvlab_torch_time_products(int batch, int samples, double* nanoseconds) {
  return guarded([&] {
    const c10::InferenceMode no_gradients;
    const c10::cuda::CUDAStreamGuard guard(own_stream());
    const Decoder& model = made_decoder();
    const KvlabDecoderShape& shape = model.shape;
    const auto random = [&](int64_t width) {
      return at::randn({batch, width}, on_gpu(at::kBFloat16));
    };
    const at::Tensor hidden = random(shape.hidden), gated = random(shape.intermediate),
                     attended = random(int64_t{shape.q_heads} * shape.dim);
    at::Tensor sum = random(shape.hidden);
    time_graph(
        [&] {
          for (const Layer& layer : model.layers) {
            hidden.mm(layer.qkv.t());
            sum.addmm_(attended, layer.o.t());
            hidden.mm(layer.gate_up.t());
            sum.addmm_(gated, layer.down.t());
          }
          hidden.mm(model.output.t());
        },
        samples, nanoseconds, nullptr);
  });
}

int kvlab_torch_time_attention(const char* kind, int batch, int tokens, int samples,
                               double* nanoseconds) {
  return guarded([&] {
    const c10::InferenceMode no_gradients;
    const c10::cuda::CUDAStreamGuard guard(own_stream());
    const KvlabDecoderShape& shape = made_decoder().shape;
    const Unpacked cache(kind, shape, batch, tokens);
    const at::Tensor query = at::randn({batch, shape.q_heads, shape.dim}, on_gpu(at::kBFloat16));
    time_graph(
        [&] {
          for (int layer = 0; layer < shape.layers; ++layer) cache.attend(layer, query);
        },
        samples, nanoseconds, nullptr);
  });
}
