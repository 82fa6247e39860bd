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

  /// A prompt that attended in full precision: its keys and values [Hkv, n, d].
  virtual void prefill(const at::Tensor& k, const at::Tensor& v) = 0;

  /// Takes in one token's keys and values [Hkv, 1, d] and attends with its queries [Hq, 1, d]:
  /// float32 [Hq, 1, d].
  virtual at::Tensor step(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) = 0;

  /// bits and bytes as held now.
  virtual metrics::Arrays memory() const = 0;
};

/// Attention token by token through the caches of a backend: KvCache of `cpu` or `cuda`, tensors of
/// `reference`.
class Decoding {
 public:
  /// capacity: tokens of the longest sequence. methods must outlive it. Throws Unsupported where
  /// the backend cannot hold a layer's recipe, or a layer reads a sliding window.
  Decoding(const LayerMethods& methods, const CacheUse& use, const model::Config& config,
           int64_t capacity);

  /// Fills the empty caches with a prompt.
  void fill(const Prompt& prompt);

  /// The next token of one layer.
  at::Tensor operator()(const model::LayerInput& input);

  metrics::Arrays memory() const;

 private:
  std::vector<std::unique_ptr<LayerCache>> caches_;
};

}  // namespace kvlab::evaluate
