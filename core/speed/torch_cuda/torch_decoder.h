#pragma once

#include <cstdint>

/// A decoder of the Llama family with random bf16 weights on the GPU, one token a sequence and
/// step, behind the C interface of this library: libtorch's matrix products, and norms, RoPE and
/// gates of kernels/decoder.h. One model at a time.
extern "C" {

struct KvlabDecoderShape {
  int layers, hidden, intermediate, vocabulary, q_heads, kv_heads, dim;
};

/// What one layer's attention gets, bf16 on the GPU: query [batch, q_heads, dim] contiguous; key
/// and value [batch, kv_heads, dim], sequences `stride` elements apart; output [batch, q_heads,
/// dim] contiguous. `stream` is a cudaStream_t.
struct KvlabLayerStep {
  int layer;
  const void *query, *key, *value;
  std::int64_t stride;
  void* output;
  void* stream;
};

/// A cache that takes in a step's tokens and attends. Both functions only send work to the stream,
/// the same work each time: they are recorded in a CUDA graph. They may throw std::exception.
struct KvlabStepCache {
  void* context;
  void (*begin)(void* context, void* stream);  // a step begins
  void (*attend)(void* context, const KvlabLayerStep* layer);
};

/// Steps that are run before the timed ones.
enum { kvlab_torch_warm_steps = 3 };

/// Each returns 0, or another number where it failed; kvlab_torch_error says why.

/// Makes the weights, in place of those that were there.
int kvlab_torch_make_decoder(const KvlabDecoderShape* shape);

/// Bytes of the GPU that are free, and all.
int kvlab_torch_memory(std::int64_t* free, std::int64_t* total);

/// `count` normal numbers, bf16 on the GPU, valid until the next call; null frees them.
int kvlab_torch_normal(std::int64_t count, const void** numbers);

/// Nanoseconds of each of `steps` decoding steps through a cache, CUDA graphs sent one behind the
/// other; used: bytes of the GPU in use meanwhile.
int kvlab_torch_time_steps(const KvlabStepCache* cache, int batch, int steps, double* nanoseconds,
                           std::int64_t* used);

/// The same through bf16 tokens and libtorch's attention, kind "torch_cudnn" or "torch_flash": each
/// step attends to `tokens` tokens, the last of which it writes.
int kvlab_torch_time_unpacked(const char* kind, int batch, int tokens, int steps,
                              double* nanoseconds, std::int64_t* used);

/// Nanoseconds of the matrix products of a step alone, and of that attention in all layers alone.
int kvlab_torch_time_products(int batch, int samples, double* nanoseconds);
int kvlab_torch_time_attention(const char* kind, int batch, int tokens, int samples,
                               double* nanoseconds);
}
