#include "evaluate/passage.h"

#include <functional>

#include "evaluate/decoding.h"
#include "evaluate/teacher_forced.h"

namespace kvlab::evaluate {
namespace {

int64_t tokens_of(const Prompt* prompt) { return prompt == nullptr ? 0 : prompt->tokens; }

}  // namespace

PassageResult teacher_forced(const model::Decoder& decoder, const LayerMethods& methods,
                             const CacheUse& use, const Prompt* prompt, const at::Tensor& tokens) {
  TeacherForced attention(methods, use, prompt);
  const at::Tensor states = decoder.forward(tokens, tokens_of(prompt), std::ref(attention));
  return {states.to(at::kCPU), attention.memory(), attention.notes()};
}

PassageResult decode(const model::Decoder& decoder, const LayerMethods& methods,
                     const CacheUse& use, const Prompt* prompt, const at::Tensor& tokens) {
  const int64_t start = tokens_of(prompt);
  Decoding attention(methods, use, decoder, start + tokens.size(0));
  if (prompt != nullptr) attention.fill(*prompt);
  std::vector<at::Tensor> states;
  for (int64_t i = 0; i < tokens.size(0); ++i) {
    states.push_back(decoder.forward(tokens.narrow(0, i, 1), start + i, std::ref(attention)));
  }
  return {at::cat(states).to(at::kCPU), attention.memory(), attention.notes()};
}

Writing greedy(const model::Decoder& decoder, const LayerMethods& methods, const CacheUse& use,
               const Prompt& prompt, int64_t count) {
  Decoding attention(methods, use, decoder, prompt.tokens + count);
  attention.fill(prompt);
  at::Tensor written = at::empty({count}, at::kLong);
  at::Tensor state = prompt.states.narrow(0, prompt.tokens - 1, 1);
  for (int64_t i = 0; i < count; ++i) {
    if (i > 0) {
      state =
          decoder.forward(written.narrow(0, i - 1, 1), prompt.tokens + i - 1, std::ref(attention));
    }
    written[i] = decoder.logits(state).argmax(-1)[0].to(at::kCPU);
  }
  return {written, attention.memory(), attention.notes()};
}

Answer answer(const model::Decoder& decoder, const Prompt& prompt, const at::Tensor& right,
              const at::Tensor& states) {
  const at::Tensor all = at::cat(
      {prompt.states.narrow(0, prompt.tokens - 1, 1), states.narrow(0, 0, right.size(0) - 1)});
  const at::Tensor weights = decoder.logits(all).to(at::kCPU).to(at::kDouble).log_softmax(-1);
  Answer result;
  result.is_exact = weights.argmax(-1).equal(right);
  result.nll = -weights.gather(1, right.unsqueeze(1)).mean().item<double>();
  return result;
}

}  // namespace kvlab::evaluate
