#include "run/model_cell.h"

#include <algorithm>

#include "evaluate/passage.h"
#include "evaluate/score.h"
#include "metrics/blocks.h"

namespace kvlab::run {
namespace {

/// Each sentence once.
void warn(const std::vector<std::string>& notes, store::CellResult& result) {
  for (const std::string& note : notes) {
    if (std::find(result.warnings.begin(), result.warnings.end(), note) == result.warnings.end()) {
      result.warnings.push_back(note);
    }
  }
}

evaluate::LayerMethods prepare(const config::Cell& cell, const model::Config& model, Inputs& inputs,
                               const calibrate::Progress& progress, store::CellResult& result) {
  evaluate::LayerMethods methods;
  for (int64_t layer = 0; layer < model.layers; ++layer) {
    method::Recipe recipe = method::on_layer(cell.recipe, layer);
    std::optional<calibrate::CalibrationSample> calibration;
    if (method::needs_calibration(recipe)) {
      calibration = calibration_of(cell, layer, inputs.samples);
    }
    calibrate::Prepared prepared =
        calibrate::prepare(recipe, model.kv_heads, model.head_dim, layer, cell.seed, calibration,
                           inputs.calibrations, progress);
    warn(prepared.notes, result);
    methods.push_back({std::move(recipe), std::move(prepared)});
  }
  return methods;
}

/// Rotations and centres of all layers in one array each, [L, 1 or Hkv, d, d] and [L, Hkv, d];
/// nothing where a layer has none or another shape.
void keep_tensors(const evaluate::LayerMethods& methods, store::CellResult& result) {
  const auto keep = [&](const auto& of_layer, const std::string& name, auto& into) {
    std::vector<at::Tensor> all;
    for (const evaluate::LayerMethod& method : methods) {
      all.push_back(of_layer(method.prepared));
      if (!all.back().defined() || all.back().sizes() != all.front().sizes()) return;
    }
    into[name] = array_of(at::stack(all));
  };
  using calibrate::Prepared;
  keep([](const Prepared& one) { return one.key.stored_rotation; }, "key", result.rotation);
  keep([](const Prepared& one) { return one.value.stored_rotation; }, "value", result.rotation);
  keep([](const Prepared& one) { return one.key.transform.center(); }, "key", result.center);
  keep([](const Prepared& one) { return one.value.transform.center(); }, "value", result.center);
}

/// Windows of the recipe that holds where no layer rule does.
void keep_history(const config::Cell& cell, int64_t tokens, store::CellResult& result) {
  using Side = cache::Windows::Side;
  const cache::Windows windows(cell.recipe.settings, tokens);
  result.tokens_total = tokens;
  result.hist_key[0] = result.hist_value[0] = windows.begin();
  result.hist_key[1] = windows.boundary(Side::key, tokens - 1);
  result.hist_value[1] = windows.boundary(Side::value, tokens - 1);
}

void add(const metrics::Arrays& arrays, store::CellResult& result) {
  for (const auto& [name, tensor] : arrays) {
    result.metrics[name] = array_of(tensor);
    result.scalars[name] = metrics::scalar_of(name, tensor);
  }
}

/// What the measures of a cell share.
struct Job {
  const config::Cell& cell;
  const ModelInput& input;
  evaluate::LayerMethods methods;

  evaluate::PassageResult run(const evaluate::Prompt* prompt, const at::Tensor& tokens) const {
    return evaluate_tokens(cell, *input.decoder, methods, prompt, tokens);
  }
};

/// `prefill: exact`: the first half is a prompt, and only what follows is scored.
void measure_perplexity(const Job& job, store::CellResult& result) {
  const int64_t first = first_scored(job.cell, job.input);
  const at::Tensor tokens = job.input.tokens.slice(0, first);
  const evaluate::PassageResult made = job.run(first > 0 ? &*job.input.prompt : nullptr, tokens);
  const evaluate::Scores scores =
      evaluate::score(*job.input.decoder, made.states, job.input.exact, tokens);
  warn(made.notes, result);
  add(made.memory, result);
  add(evaluate::perplexity(scores, first), result);
  // By position: intervals resample blocks of them, paired between methods.
  const at::Tensor difference = scores.nll - scores.exact_nll;
  const auto keep = [&](const char* name, const at::Tensor& values, int64_t before) {
    result.tokens[name] = array_of(values);
    result.blocks[name] = array_of(metrics::block_sums(values, first + before));
  };
  keep("nll", scores.nll, 0);
  keep("dnll", difference, 0);
  keep("next_kl", scores.kl, 0);
  keep("next_top1", scores.top1, 0);
  const int64_t skipped = evaluate::before_tail(first);
  if (skipped < difference.size(0)) keep("dnll_tail", difference.slice(0, skipped), skipped);
}

/// The answers' tokens but the last are fed; the first follows from the prompt alone.
void measure_needles(const Job& job, store::CellResult& result) {
  const at::Tensor& answers = job.input.answers;
  std::vector<double> exact, nll;
  for (size_t trial = 0; trial < job.input.trials.size(); ++trial) {
    const evaluate::Prompt& prompt = job.input.trials[trial];
    const at::Tensor right = answers[static_cast<int64_t>(trial)];
    const evaluate::PassageResult made =
        job.run(&prompt, right.narrow(0, 0, std::max<int64_t>(1, right.size(0) - 1)));
    const evaluate::Answer found = evaluate::answer(*job.input.decoder, prompt, right, made.states);
    exact.push_back(found.is_exact ? 1 : 0);
    nll.push_back(found.nll);
    if (trial == 0) add(made.memory, result);
    warn(made.notes, result);
  }
  const at::Tensor all_exact = at::tensor(exact, at::kDouble);
  const at::Tensor all_nll = at::tensor(nll, at::kDouble);
  add({{"needle_exact", all_exact.mean()}, {"needle_nll", all_nll.mean()}}, result);
  const auto keep = [&](const char* name, const at::Tensor& values) {
    result.tokens[name] = array_of(values);
    // A trial is a text of its own, so each is a block.
    result.blocks[name] = array_of(at::stack({values, at::ones_like(values)}, -1).unsqueeze(0));
  };
  keep("needle_exact", all_exact);
  keep("needle_nll", all_nll);
}

/// Greedy writing is decoding, whatever `evaluation` says.
void measure_divergence(const Job& job, store::CellResult& result) {
  const evaluate::Writing made = evaluate::greedy(
      *job.input.decoder, job.methods, cache_use(job.cell), *job.input.prompt, kContinuation);
  warn(made.notes, result);
  add(made.memory, result);
  const at::Tensor differs = made.tokens.ne(job.input.continuation).nonzero();
  const double first =
      differs.size(0) > 0 ? differs[0][0].item<double>() : static_cast<double>(kContinuation);
  add({{"divergence", at::scalar_tensor(first, at::kDouble)}}, result);
}

}  // namespace

void measure_model(const config::Cell& cell, Inputs& inputs, const calibrate::Progress& progress,
                   store::CellResult& result) {
  const std::shared_ptr<const ModelInput> input = inputs.models.get(cell);
  const Job job{cell, *input, prepare(cell, input->decoder->config(), inputs, progress, result)};
  const auto measures = [&](const char* word) {
    return std::count(cell.measure.begin(), cell.measure.end(), word) > 0;
  };
  // Bits and history are those of the measure that comes last.
  int64_t tokens = input->tokens.defined() ? input->tokens.size(0) : 0;
  if (measures("needle") && !input->trials.empty()) {
    measure_needles(job, result);
    tokens = input->trials.front().tokens + input->answers.size(1) - 1;
  }
  if (measures("divergence") && input->continuation.defined()) {
    measure_divergence(job, result);
    tokens = input->prompt->tokens + kContinuation - 1;
  }
  if (measures("perplexity") && input->exact.defined()) {
    measure_perplexity(job, result);
    tokens = input->tokens.size(0);
  }
  keep_tensors(job.methods, result);
  keep_history(cell, tokens, result);
}

}  // namespace kvlab::run
