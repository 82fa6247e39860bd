#include "evaluate/prompt.h"

#include <map>
#include <memory>

#include "quant/rounding.h"

namespace kvlab::evaluate {

Prompt run_prompt(const model::Decoder& decoder, const at::Tensor& tokens, DType dtype) {
  Prompt prompt;
  prompt.tokens = tokens.size(0);
  prompt.states = decoder.forward(tokens, 0, [&](const model::LayerInput& input) {
    const LayerTokens& held = prompt.layers.emplace_back(tokens_of(input, dtype));
    return model::exact_attention(input.q, held.k.to(input.q.options()),
                                  held.v.to(input.q.options()), input.window);
  });
  return prompt;
}

model::Attention exact_steps(const Prompt* prompt, DType dtype) {
  struct Held {
    at::Tensor k, v;
  };
  const auto held = std::make_shared<std::map<int64_t, Held>>();
  return [=](const model::LayerInput& input) {
    const auto layer = static_cast<size_t>(input.layer);
    const auto found = held->find(input.layer);
    const auto after = [&](const at::Tensor& before, const at::Tensor& x) {
      const at::Tensor rounded = x.to(quant::scalar_type(dtype)).to(input.q.scalar_type());
      return before.defined() ? at::cat({before.to(rounded.options()), rounded}, 1) : rounded;
    };
    Held now;
    if (found != held->end()) now = found->second;
    if (found == held->end() && prompt != nullptr)
      now = {prompt->layers[layer].k, prompt->layers[layer].v};
    now = {after(now.k, input.k), after(now.v, input.v)};
    (*held)[input.layer] = now;
    return model::exact_attention(input.q, now.k, now.v, input.window);
  };
}

}  // namespace kvlab::evaluate
