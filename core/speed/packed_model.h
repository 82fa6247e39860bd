#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kvlab/kernels/cuda_device.h"

namespace kvlab::speed {

/// The shape of a decoder's caches.
struct CacheShape {
  kernels::Format format;
  int layers = 36;
  int batch = 1;
  int q_heads = 32, kv_heads = 8;
  int tokens = 4096;  // of a sequence, at the most
  int sink = 64, recent = 256;
};

/// Packed caches of all layers of a model on the GPU, with Hadamard-rotated sides and `block`
/// windows, and a decoding step's work on them, which can be captured in a CUDA graph.
class PackedModel {
 public:
  /// Caches of `held` tokens a sequence; all sequences and heads hold the same ones, normals [2,
  /// held, dim], bf16 on the GPU.
  PackedModel(const CacheShape& shape, int held, const void* normals);
  PackedModel(const PackedModel&) = delete;

  /// What is taken for the caches: pools, windows and tables.
  static double bytes(const CacheShape& shape);
  /// What the contract bills for the caches at `shape.tokens` tokens (section 5).
  static double billed_bytes(const CacheShape& shape);

  /// A step begins: one token more in every sequence, and what leaves the windows is quantized.
  void begin(kernels::cuda::Stream stream) const;

  /// A layer's new tokens, sequences `stride` elements apart, go into its windows, and its queries
  /// attend.
  void attend(int layer, const void* query, const void* key, const void* value, std::int64_t stride,
              void* output, kernels::cuda::Stream stream) const;

  /// Nanoseconds of attention alone in all layers; query: bf16 on the GPU.
  std::vector<double> time_attention(const void* query, int samples) const;

 private:
  void attend_only(int layer, const void* query, void* output, kernels::cuda::Stream stream) const;

  CacheShape shape_;
  kernels::EncodeSpec spec_;
  kernels::cuda::AttendPlan plan_;
  std::shared_ptr<void> lengths_, table_, scratch_, device_layers_;
  std::vector<std::shared_ptr<void>> memory_;
  std::vector<kernels::cuda::Layer> layers_;
};

}  // namespace kvlab::speed
