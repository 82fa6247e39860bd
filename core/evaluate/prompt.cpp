#include "evaluate/prompt.h"

namespace kvlab::evaluate {

Prompt run_prompt(const model::Decoder& decoder, const at::Tensor& tokens, DType dtype) {
  Prompt prompt;
  prompt.tokens = tokens.size(0);
  const at::Tensor states = decoder.forward(tokens, 0, [&](const model::LayerInput& input) {
    const LayerTokens& held = prompt.layers.emplace_back(tokens_of(input, dtype));
    return model::exact_attention(input.q, held.k.to(input.q.options()),
                                  held.v.to(input.q.options()), input.window);
  });
  prompt.states = states.to(at::kCPU);
  return prompt;
}

}  // namespace kvlab::evaluate
