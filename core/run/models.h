#pragma once

#include <ATen/ATen.h>

#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "config/plan.h"
#include "evaluate/passage.h"
#include "model/needles_file.h"
#include "run/describe.h"

namespace kvlab::run {

/// What all methods on one item of a model share; what is not asked for is empty.
struct ModelInput {
  std::shared_ptr<const model::Decoder> decoder;
  at::Tensor tokens;                       // int64 [T] of a passage
  std::optional<evaluate::Prompt> prompt;  // the passage's first half
  at::Tensor exact;  // [n, D]: last states with an unquantized cache of the tokens that are scored
  at::Tensor continuation;               // int64 [n]: what is written after it, greedily
  std::vector<evaluate::Prompt> trials;  // of a needle task
  at::Tensor answers;                    // int64 [trials, m]
};

evaluate::CacheUse cache_use(const config::Cell& cell);

/// Why a model of the experiment cannot run here, as a sentence; nothing where all can.
std::optional<std::string> missing_device(const config::Experiment& experiment);

/// Where the tokens that are scored begin: with `prefill: exact` behind the prompt.
int64_t first_scored(const config::Cell& cell, const ModelInput& input);

/// Tokens after a prompt, or from the start where it is nullptr, as the experiment's `evaluation`
/// says.
evaluate::PassageResult evaluate_tokens(const config::Cell& cell, const model::Decoder& decoder,
                                        const evaluate::LayerMethods& methods,
                                        const evaluate::Prompt* prompt, const at::Tensor& tokens);

/// The models of a run and their inputs: each made once, when the first cell asks for it; an input
/// is let go after its last cell, a model stays. Safe for several threads.
class Models {
 public:
  /// Announces one later use of this cell's input.
  void expect(const config::Cell& cell);

  /// Throws what making it threw, for every cell that asks.
  std::shared_ptr<const ModelInput> get(const config::Cell& cell);

  /// One announced use is over.
  void release(const config::Cell& cell);

 private:
  using Shared = std::shared_ptr<const ModelInput>;
  struct Entry {
    int64_t uses = 0;
    std::shared_future<Shared> made;
  };

  Shared make(const config::Cell& cell);
  std::shared_ptr<const model::Decoder> decoder(const config::DatasetItem& item);

  std::mutex mutex_;
  std::map<std::string, Entry> entries_;
  std::mutex decoder_mutex_;
  std::map<std::string, std::shared_ptr<const model::Decoder>> decoders_;
};

}  // namespace kvlab::run
