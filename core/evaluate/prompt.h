#pragma once

#include <vector>

#include "evaluate/layer_tokens.h"

namespace kvlab::evaluate {

/// A prompt that was run in full precision, as serving systems do: every method's cache is filled
/// from it, so that it is run once.
struct Prompt {
  int64_t tokens = 0;
  std::vector<LayerTokens> layers;
  at::Tensor states;  // [n, D] as Decoder::forward returns them, on the host
};

Prompt run_prompt(const model::Decoder& decoder, const at::Tensor& tokens, DType dtype);

}  // namespace kvlab::evaluate
