#include "run/models.h"

#include <fmt/format.h>

#include <algorithm>

#include "model/device.h"
#include "quant/rounding.h"

namespace kvlab::run {
namespace {

std::string decoder_identity(const config::DatasetItem& item) {
  return fmt::format("{}|{}|{}", item.path.string(), item.model->device,
                     name_of(item.model->dtype));
}

std::string identity(const config::Cell& cell) {
  const config::ModelRun& run = *cell.dataset.model;
  return fmt::format("{}|{}|{}|{}|{}|{}|{}|{}", decoder_identity(cell.dataset), run.tokens.string(),
                     run.passage, run.length, run.needles.string(), run.task, run.prefill,
                     name_of(run.cache_dtype));
}

/// A method that keeps keys and values as they are.
evaluate::LayerMethods unquantized(const model::Config& model) {
  std::vector<Problem> problems;
  const method::Recipe recipe =
      method::parse_recipe("{id: unquantized, key: {codec: {kind: passthrough}}}", "", problems);
  return evaluate::on_all_layers(recipe, model);
}

bool measures(const config::Cell& cell, const char* word) {
  return std::count(cell.measure.begin(), cell.measure.end(), word) > 0;
}

}  // namespace

evaluate::CacheUse cache_use(const config::Cell& cell) {
  return {.dtype = cell.dataset.model->cache_dtype, .backend = cell.backend};
}

std::optional<std::string> missing_device(const config::Experiment& experiment) {
  for (const config::DatasetItem& item : experiment.datasets) {
    if (!item.model) continue;
    if (auto missing = model::missing_device(at::Device(item.model->device))) return missing;
  }
  return std::nullopt;
}

int64_t first_scored(const config::Cell& cell, const ModelInput& input) {
  return cell.dataset.model->prefill == "exact" ? input.prompt->tokens : 0;
}

evaluate::PassageResult evaluate_tokens(const config::Cell& cell, const model::Decoder& decoder,
                                        const evaluate::LayerMethods& methods,
                                        const evaluate::Prompt* prompt, const at::Tensor& tokens) {
  const evaluate::CacheUse use = cache_use(cell);
  const bool decodes = cell.dataset.model->evaluation == "decode";
  return decodes ? evaluate::decode(decoder, methods, use, prompt, tokens)
                 : evaluate::teacher_forced(decoder, methods, use, prompt, tokens);
}

std::shared_ptr<const model::Decoder> Models::decoder(const config::DatasetItem& item) {
  const std::lock_guard lock(decoder_mutex_);
  auto& held = decoders_[decoder_identity(item)];
  if (!held) {
    const model::Decoder::Options options{.type = quant::scalar_type(item.model->dtype),
                                          .device = at::Device(item.model->device)};
    held = std::make_shared<const model::Decoder>(item.path, options);
  }
  return held;
}

Models::Shared Models::make(const config::Cell& cell) {
  const config::ModelRun& run = *cell.dataset.model;
  const auto input = std::make_shared<ModelInput>();
  input->decoder = decoder(cell.dataset);
  if (!run.needles.empty()) {
    const model::Needles read = needles(cell.dataset);
    input->answers = read.answers;
    for (int64_t trial = 0; trial < read.prompts.size(0); ++trial) {
      input->trials.push_back(
          evaluate::run_prompt(*input->decoder, read.prompts[trial], run.cache_dtype));
    }
    return input;
  }
  input->tokens = passage(cell.dataset);
  const int64_t half = input->tokens.size(0) / 2;
  if (run.prefill == "exact" || measures(cell, "divergence")) {
    input->prompt =
        evaluate::run_prompt(*input->decoder, input->tokens.narrow(0, 0, half), run.cache_dtype);
  }
  if (measures(cell, "divergence")) {
    // Through the same backend: the rounding of its kernels, which turns near ties, is no method's.
    input->continuation = evaluate::greedy(*input->decoder, unquantized(input->decoder->config()),
                                           cache_use(cell), *input->prompt, kContinuation)
                              .tokens;
  }
  if (measures(cell, "perplexity")) {
    // In the way of every method, so that what dnll is paired with differs in quantization alone.
    const int64_t first = first_scored(cell, *input);
    input->exact =
        evaluate_tokens(cell, *input->decoder, unquantized(input->decoder->config()),
                        first > 0 ? &*input->prompt : nullptr, input->tokens.slice(0, first))
            .states;
  }
  return input;
}

void Models::expect(const config::Cell& cell) {
  if (!cell.dataset.model) return;
  const std::lock_guard lock(mutex_);
  ++entries_[identity(cell)].uses;
}

Models::Shared Models::get(const config::Cell& cell) {
  std::promise<Shared> promise;
  std::shared_future<Shared> made;
  bool mine = false;
  {
    const std::lock_guard lock(mutex_);
    Entry& entry = entries_[identity(cell)];
    if (!entry.made.valid()) {
      entry.made = promise.get_future().share();
      mine = true;
    }
    made = entry.made;
  }
  if (mine) {
    try {
      promise.set_value(make(cell));
    } catch (...) {
      promise.set_exception(std::current_exception());
    }
  }
  return made.get();
}

void Models::release(const config::Cell& cell) {
  if (!cell.dataset.model) return;
  const std::lock_guard lock(mutex_);
  const auto entry = entries_.find(identity(cell));
  if (entry != entries_.end() && --entry->second.uses <= 0) entries_.erase(entry);
}

}  // namespace kvlab::run
