#pragma once

#include <cstdint>

#include "kvlab/kernels/cuda.h"

/// What a decoder of the Llama family does between its matrix products and its attention, one token
/// a sequence, bf16 on the GPU, computed in float32 and rounded once. Each is one launch that
/// allocates and synchronises nothing. Rows are contiguous, widths multiples of 8.
namespace kvlab::kernels::cuda {

/// out[r, :] = x[r, :] / sqrt(mean(x[r, :]²) + eps) · weight, for x and out [rows, width] and
/// weight [width].
void rms_norm(const void* x, const void* weight, void* out, int rows, int width, float eps,
              Stream stream);

/// The heads of a step, as the product of queries, keys and values makes them.
struct StepHeads {
  void* heads = nullptr;          // [batch, q_heads + 2 kv_heads, dim]; keys change in place
  const float* weight = nullptr;  // [q_heads + kv_heads, dim]: of the norm of each head
  const float* turn = nullptr;    // [dim / 2, 2]: cosine and sine of RoPE, of neighbouring channels
  void* query = nullptr;          // [batch, q_heads, dim]
  int batch = 1, q_heads = 1, kv_heads = 1, dim = 128;  // dim: 64, 128 or 256
};

/// Norm and RoPE of queries and keys (Qwen3's order). Queries go to `query`.
void norm_and_turn(const StepHeads& step, float eps, Stream stream);

/// out = silu(gate) · up, for rows [gate, up] of 2 · width numbers and out [rows, width].
void gate(const void* gate_up, void* out, int rows, int width, Stream stream);

}  // namespace kvlab::kernels::cuda
