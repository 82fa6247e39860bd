#pragma once

#include <ATen/ATen.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "model/config.h"
#include "model/weights.h"

namespace kvlab::model {

/// What one layer's attention is given, of tokens first … first + n − 1 of a sequence.
struct LayerInput {
  int64_t layer = 0;
  int64_t first = 0;
  int64_t window = 0;                // the last tokens that attention may read; 0: all
  at::Tensor q;                      // [Hq, n, d] after RoPE
  at::Tensor k, v;                   // [Hkv, n, d], k after RoPE
  at::Tensor k_pre;                  // [Hkv, n, d] before RoPE, after its norm
  at::Tensor hidden;                 // [n, D] what enters the layer
  const data::Rope* rope = nullptr;  // what turned k_pre into k, on the model's device
};

/// Attention of a layer: [Hq, n, d] of the same type as q. The decoder leaves it to its caller, who
/// may hold keys and values as it likes.
using Attention = std::function<at::Tensor(const LayerInput&)>;

/// A decoder of the Llama family: all of it but attention. One sequence at a time.
class Decoder {
 public:
  struct Options {
    at::ScalarType type = at::kFloat;  // of weights and activations
    at::Device device = at::kCPU;
  };

  /// Loads a Hugging Face folder. Throws Error where the device is not there, config or weights are
  /// missing or not supported, or the weights hold a tensor that this decoder would not use.
  explicit Decoder(const std::filesystem::path& folder) : Decoder(folder, Options{}) {}
  Decoder(const std::filesystem::path& folder, const Options& options);

  const Config& config() const { return config_; }
  const data::Rope& rope() const { return rope_; }

  /// tokens: int64 [n]. The residual stream that enters layer 0, [n, D].
  at::Tensor embed(const at::Tensor& tokens) const;

  /// One layer: hidden [n, D] of tokens first … first + n − 1 to what enters the next one.
  at::Tensor layer(int64_t layer, const at::Tensor& hidden, int64_t first,
                   const Attention& attention) const;

  /// All layers and the last norm: [n, D], what `logits` takes. Throws Error where it is not
  /// finite, since a score of it would be a number all the same.
  at::Tensor forward(const at::Tensor& tokens, int64_t first, const Attention& attention) const;

  /// The last norm alone.
  at::Tensor finish(const at::Tensor& hidden) const;

  /// float32 [n, vocabulary] on the model's device of rows that `forward` returned, wherever they
  /// are kept. All rows at once: a caller of many gives them in parts.
  at::Tensor logits(const at::Tensor& finished) const;

  /// W_O of a layer, [D, Hq·d].
  const at::Tensor& output_matrix(int64_t layer) const;

 private:
  struct Linear {
    at::Tensor weight, bias;  // bias: undefined where there is none
    at::Tensor operator()(const at::Tensor& x) const { return at::linear(x, weight, bias); }
  };
  struct Layer {
    at::Tensor attention_norm, mlp_norm, q_norm, k_norm;
    Linear q, k, v, o, gate, up, down;
  };

  at::Tensor norm(const at::Tensor& x, const at::Tensor& weight) const;
  at::Tensor heads(const at::Tensor& x, int64_t count, const at::Tensor& weight) const;

  Config config_;
  Options options_;
  at::Tensor embedding_, last_norm_, output_;
  data::Rope rope_;
  std::vector<Layer> layers_;
};

/// Exact causal attention of q [Hq, n, d], the last n tokens of k, v [Hkv, T, d]; each token reads
/// the last `window` tokens up to its own, all where it is 0.
at::Tensor exact_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                           int64_t window);

/// Attention of whole sequences, all tokens in one step.
at::Tensor whole_attention(const LayerInput& input);

}  // namespace kvlab::model
