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
#include "evaluate/prompt.h"
#include "model/needles_file.h"

namespace kvlab::run {

/// What all methods on one item of a model share; what is not asked for is empty.
struct ModelInput {
  std::shared_ptr<const model::Decoder> decoder;
  at::Tensor tokens;                       // int64 [T] of a passage
  at::Tensor exact;                        // [T, D]: its last states with an unquantized cache
  std::optional<evaluate::Prompt> prompt;  // the passage's first half
  at::Tensor continuation;                 // int64 [n]: what is written after it, greedily
  std::vector<evaluate::Prompt> trials;    // of a needle task
  at::Tensor answers;                      // int64 [trials, m]
};

/// Tokens over which the first greedy one that differs is looked for (contract section 7).
inline constexpr int64_t kContinuation = 256;

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
  std::shared_ptr<const model::Decoder> decoder(const std::string& folder);

  std::mutex mutex_;
  std::map<std::string, Entry> entries_;
  std::mutex decoder_mutex_;
  std::map<std::string, std::shared_ptr<const model::Decoder>> decoders_;
};

}  // namespace kvlab::run
