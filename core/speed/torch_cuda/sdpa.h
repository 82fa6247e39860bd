#pragma once

#include <ATen/ATen.h>
#include <ATen/Context.h>

#include <stdexcept>
#include <string>

namespace kvlab::torch_cuda {

/// Leaves libtorch the one kernel that is asked for; it refuses rather than takes another. kind:
/// torch_cudnn or torch_flash.
inline void choose_sdpa(const std::string& kind) {
  if (kind != "torch_cudnn" && kind != "torch_flash") {
    throw std::invalid_argument("'" + kind + "' is neither torch_cudnn nor torch_flash");
  }
  at::Context& context = at::globalContext();
  context.setSDPUseCuDNN(kind == "torch_cudnn");
  context.setSDPUseFlash(kind == "torch_flash");
  context.setSDPUseMemEfficient(false);
  context.setSDPUseMath(false);
}

/// Attention of one query token a sequence: query [B, Hq, 1, d], key and value [B, Hkv, T, d].
inline at::Tensor one_token_attention(const at::Tensor& query, const at::Tensor& key,
                                      const at::Tensor& value) {
  return at::scaled_dot_product_attention(query, key, value, {}, 0.0, /*is_causal=*/false, {},
                                          /*enable_gqa=*/true);
}

}  // namespace kvlab::torch_cuda
