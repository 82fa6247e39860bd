#include "evaluate/prompt.h"

#include <map>
#include <memory>

#include "quant/rounding.h"

namespace kvlab::evaluate {

Prompt run_prompt(const model::Decoder& decoder, const at::Tensor& tokens, DType dtype) {
  Prompt prompt;
  prompt.tokens = tokens.size(0);
  prompt.states = decoder.forward(tokens, 0, [&](const model::LayerInput& input) {
    const at::ScalarType type = quant::scalar_type(dtype);
    prompt.k.push_back(input.k.to(type));
    prompt.v.push_back(input.v.to(type));
    return model::exact_attention(input.q, prompt.k.back().to(input.q.scalar_type()),
                                  prompt.v.back().to(input.q.scalar_type()), input.window);
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
      return before.defined() ? at::cat({before.to(rounded.scalar_type()), rounded}, 1) : rounded;
    };
    Held now;
    if (found != held->end()) now = found->second;
    if (found == held->end() && prompt != nullptr) now = {prompt->k[layer], prompt->v[layer]};
    now = {after(now.k, input.k), after(now.v, input.v)};
    (*held)[input.layer] = now;
    return model::exact_attention(input.q, now.k, now.v, input.window);
  };
}

}  // namespace kvlab::evaluate
