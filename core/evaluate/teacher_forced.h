#pragma once

#include "evaluate/layer_method.h"
#include "evaluate/prompt.h"

namespace kvlab::evaluate {

/// Attention of all tokens after a prompt in one pass, with the result of decoding them one by one:
/// the query at p reads tokens through the cache as it stands at step p (contract section 4.3).
/// Errors travel through the layers, since each layer's keys and values come from what the one
/// before it made of them.
class TeacherForced {
 public:
  /// methods and prompt must outlive it; one method a layer. prompt: nullptr for an empty cache.
  TeacherForced(const LayerMethods& methods, CacheUse use, const Prompt* prompt);

  at::Tensor operator()(const model::LayerInput& input);

  /// Bits and bytes at the end of the sequence, over all layers; call after the last one.
  metrics::Arrays memory() const { return over_layers(memory_); }

  /// What a reader should know, each sentence once.
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  const LayerMethods& methods_;
  CacheUse use_;
  const Prompt* prompt_;
  std::vector<metrics::Arrays> memory_;
  std::vector<std::string> notes_;
};

}  // namespace kvlab::evaluate
