#pragma once

#include "evaluate/layer_method.h"
#include "evaluate/prompt.h"
#include "evaluate/score.h"

namespace kvlab::evaluate {

struct PassageResult {
  // [n, D] of the tokens after the prompt, as Decoder::forward returns them, on the host.
  at::Tensor states;
  metrics::Arrays memory;  // bits and bytes at the end, over all layers
  std::vector<std::string> notes;
};

/// Tokens int64 [n] after a prompt (nullptr: none) in one pass, with the result of decoding them
/// one by one.
PassageResult teacher_forced(const model::Decoder& decoder, const LayerMethods& methods,
                             const CacheUse& use, const Prompt* prompt, const at::Tensor& tokens);

/// The same token by token through the caches of use.backend.
PassageResult decode(const model::Decoder& decoder, const LayerMethods& methods,
                     const CacheUse& use, const Prompt* prompt, const at::Tensor& tokens);

struct Writing {
  at::Tensor tokens;       // int64 [count]
  metrics::Arrays memory;  // as above; the last token is written, not held
  std::vector<std::string> notes;
};

/// `count` tokens that a model writes after a prompt through the caches of use.backend, the most
/// likely one at each step.
Writing greedy(const model::Decoder& decoder, const LayerMethods& methods, const CacheUse& use,
               const Prompt& prompt, int64_t count);

/// How a prompt's right answer fares.
struct Answer {
  bool is_exact = false;  // the greedy answer is this one
  double nll = 0;         // mean over its tokens, nats
};

/// answer: int64 [m]. A greedy answer is the right one where each of its tokens is the most likely
/// after the right ones before it, so that one pass over the right answer tells.
Answer answer(const model::Decoder& decoder, const Prompt& prompt, const at::Tensor& answer,
              const at::Tensor& states);

}  // namespace kvlab::evaluate
