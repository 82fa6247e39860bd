#include "run/describe.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/hash.h"
#include "base/names.h"
#include "cache/packed_format.h"
#include "data/capture_info.h"
#include "data/file_hash.h"
#include "data/synthetic.h"
#include "model/checkpoint.h"
#include "model/config.h"
#include "model/tokens_file.h"
#include "model/weights.h"
#include "store/needle.h"

namespace kvlab::run {

data::ProbeChoice choice(const config::Probes& probes) {
  return {.placement = probes.placement, .count = probes.count};
}

namespace {

/// Throws Error where the name of a needle task says something else than its prompts: tables sort
/// by it.
void check_name(const config::ModelRun& run, int64_t length) {
  const auto name = store::needle_name(run.task);
  if (!name || (name->length == length && name->depth <= 1)) return;
  const std::string wrong = name->depth > 1 ? fmt::format("a depth of {:.0f}%", 100 * name->depth)
                                            : fmt::format("prompts of {}, found {}",
                                                          counted(name->length, "token"), length);
  throw Error(fmt::format("{}: the name of '/{}' says {}", run.needles.string(), run.task, wrong));
}

/// A sentence for each measure that takes the model beyond what it was made for. Of a passage,
/// divergence reads the first half and writes on.
std::vector<std::string> beyond_positions(const model::Config& model, int64_t tokens, bool is_text,
                                          const std::vector<std::string>& measures) {
  const auto measured = [&](const char* word) {
    return std::find(measures.begin(), measures.end(), word) != measures.end();
  };
  std::vector<std::string> notes;
  if (measured(is_text ? "perplexity" : "needle")) {
    if (auto note = model::beyond_positions(model, tokens)) notes.push_back(*note);
  }
  if (is_text && measured("divergence")) {
    if (auto note = model::beyond_positions(model, tokens / 2 + kContinuation)) {
      notes.push_back(fmt::format("{}: divergence writes {} after a prompt of {}", *note,
                                  kContinuation, tokens / 2));
    }
  }
  return notes;
}

/// What a whole-model item's passage or trials are.
config::DatasetInfo describe_model(const config::DatasetItem& item,
                                   const std::vector<std::string>& measures) {
  const model::Config model = model::read_config(item.path);
  const model::Weights weights(item.path);
  model::check_weights(weights, model);
  // Prompt and answer of each trial are a sequence.
  const auto trials = [&] {
    const model::Needles read = needles(item);
    check_name(*item.model, read.prompts.size(1));
    return at::cat({read.prompts, read.answers}, 1);
  };
  const config::ModelRun& run = *item.model;
  const bool is_text = run.needles.empty();
  const at::Tensor tokens = is_text ? passage(item).unsqueeze(0) : trials();
  model::check_tokens(tokens, model.vocabulary, is_text ? run.tokens : run.needles,
                      is_text ? "passage" : "'" + run.task + "', trial", is_text ? run.passage : 0);
  config::DatasetInfo info;
  info.batch = tokens.size(0);
  info.kv_heads = model.kv_heads;
  info.q_heads = model.q_heads;
  info.head_dim = model.head_dim;
  info.tokens = info.probes = tokens.size(1);
  info.dtype = item.model->cache_dtype;
  info.layers = {-1};
  info.model_layers = model.layers;
  info.notes = beyond_positions(model, info.tokens, is_text, measures);
  const at::Tensor ids = tokens.to(at::kInt).contiguous();
  info.token_ids = {ids.const_data_ptr<int32_t>(), ids.const_data_ptr<int32_t>() + ids.numel()};
  const std::string bytes(static_cast<const char*>(ids.const_data_ptr()), ids.nbytes());
  info.content =
      sha256(data::cached_sha256(item.path / "config.json") + weights.content() + sha256(bytes));
  return info;
}

}  // namespace

at::Tensor passage(const config::DatasetItem& item) {
  const config::ModelRun& run = *item.model;
  const model::TokensFile file = model::read_tokens(run.tokens);
  const int64_t length = run.length > 0 ? run.length : file.tokens.size(1);
  if (run.passage >= file.tokens.size(0) || length > file.tokens.size(1)) {
    throw Error(fmt::format("{}: holds {} of {}, but {} of {} were asked for", run.tokens.string(),
                            counted(file.tokens.size(0), "passage"),
                            counted(file.tokens.size(1), "token"), run.passage + 1, length));
  }
  return file.tokens[run.passage].narrow(0, 0, length);
}

model::Needles needles(const config::DatasetItem& item) {
  return model::read_needles(item.model->needles, item.model->task);
}

config::DatasetInfo describe(const config::DatasetItem& item, const config::Probes& probes,
                             const std::vector<std::string>& measures) {
  if (item.model) return describe_model(item, measures);
  const data::Description found = item.source == "synthetic"
                                      ? data::describe_synthetic(item.params, choice(probes))
                                      : data::describe_capture(item.path, item.stretch);
  config::DatasetInfo info;
  info.batch = found.batch;
  info.kv_heads = found.kv_heads;
  info.q_heads = found.q_heads;
  info.tokens = found.tokens;
  info.head_dim = found.head_dim;
  info.probes = found.probes;
  info.dtype = found.dtype;
  info.has_w_o = found.has_w_o;
  info.no_keys_before_rope = found.no_keys_before_rope;
  info.uses_seed = found.uses_seed;
  info.layers = found.layers;
  info.model = found.model;
  info.content = found.content;
  info.token_ids = found.token_ids;
  return info;
}

config::Experiment load(const std::filesystem::path& file, const std::vector<std::string>& edits) {
  // Neither probes nor measures change what files hold.
  const config::Describe described = [](const config::DatasetItem& item) {
    return describe(item, {}, {});
  };
  return config::load(file, edits, &described);
}

config::Plan make_plan(const config::Experiment& experiment) {
  const auto described = [&](const config::DatasetItem& item) {
    return describe(item, experiment.probes, experiment.measure);
  };
  const auto refuse = [](const std::string& backend, const method::Recipe& recipe,
                         const config::DatasetInfo& data) -> std::optional<std::string> {
    if (backend == "reference") return std::nullopt;
    if (auto reason = cache::heads_refusal(data.q_heads, data.kv_heads)) return reason;
    return cache::packed_refusal(recipe.settings, data.head_dim, data.dtype);
  };
  return config::make_plan(experiment, described, refuse);
}

}  // namespace kvlab::run
