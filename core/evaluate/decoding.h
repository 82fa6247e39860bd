#pragma once

#include <memory>
#include <vector>

#include "evaluate/layer_method.h"
#include "evaluate/prompt.h"

namespace kvlab::evaluate {

/// One layer's cache while a sequence is decoded.
class LayerCache {
 public:
  virtual ~LayerCache() = default;

  /// A prompt that attended in full precision.
  virtual void prefill(const LayerTokens& prompt) = 0;

  /// Takes in one token and attends with its queries q [Hq, 1, d], on the host: float32 [Hq, 1, d].
  virtual at::Tensor step(const LayerTokens& token, const at::Tensor& q) = 0;

  /// bits and bytes as held now.
  virtual metrics::Arrays memory() const = 0;

  virtual std::vector<std::string> notes() const { return {}; }
};

/// Attention token by token through the caches of a backend: KvCache of `cpu` or `cuda`, tensors of
/// `reference`.
class Decoding {
 public:
  /// capacity: tokens of the longest sequence. methods and decoder must outlive it. Throws
  /// Unsupported where the backend cannot hold a layer's recipe, or is packed and a layer of the
  /// model reads a sliding window shorter than that.
  Decoding(const LayerMethods& methods, const CacheUse& use, const model::Decoder& decoder,
           int64_t capacity);

  /// Fills the empty caches with a prompt.
  void fill(const Prompt& prompt);

  /// The next token of one layer.
  at::Tensor operator()(const model::LayerInput& input);

  metrics::Arrays memory() const;

  /// What a reader should know, each sentence once.
  std::vector<std::string> notes() const;

 private:
  DType dtype_;
  std::vector<std::unique_ptr<LayerCache>> caches_;
};

}  // namespace kvlab::evaluate
