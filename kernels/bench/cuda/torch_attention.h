#pragma once

#include <string>
#include <vector>

namespace kvlab::bench {

struct AttentionShape {
  int batch, tokens, q_heads, kv_heads, dim;
};

/// Whether libtorch's attention on the GPU is there: the module libkvlab_torch_cuda.so beside this
/// program, and the libraries that it needs. It must be asked before libtorch does anything else.
bool has_torch_attention(std::string* why);

/// Nanoseconds a launch, as kernels::cuda::time_graph, of bf16 attention over unpacked tokens.
/// kind: torch_cudnn or torch_flash. Throws std::runtime_error where libtorch refuses.
std::vector<double> time_torch_attention(const std::string& kind, const AttentionShape& shape,
                                         int copies, int launches, int samples);

}  // namespace kvlab::bench
