#include <fmt/format.h>

#include <memory>

#include "cli/verbs.h"
#include "speed/model_bench.h"

namespace kvlab::cli {
namespace {

struct Arguments {
  speed::BenchRequest request;
  std::string out;
};

}  // namespace

void add_bench_model(CLI::App& app, Exit& result) {
  auto arguments = std::make_shared<Arguments>();
  speed::BenchRequest& request = arguments->request;
  CLI::App* verb = app.add_subcommand(
      "bench-model", "Time decoding steps of a whole model with random weights on a GPU");
  verb->add_option("--out", arguments->out, "results file (kvlab.results/1)")->required();
  verb->add_option("--formats", request.formats,
                   "bf16 (libtorch's cuDNN and flash attention), f1, f2 or spelled out "
                   "(default: bf16 f1 f2)");
  verb->add_option("--contexts", request.contexts,
                   "tokens of one sequence (default: 1024 … 131072)")
      ->check(CLI::Range(256, 1 << 20));
  verb->add_option("--batches", request.batches, "sequences of 4,096 tokens (default: 1 … 256)")
      ->check(CLI::Range(1, 65535));
  verb->add_flag("!--no-largest", request.largest,
                 "leave out the largest batch of 4,096 tokens that fits");
  verb->add_option("--layers", request.layers, "of the model (default: 36)")
      ->check(CLI::Range(1, 1000));
  verb->add_option("--steps", request.steps, "timed in each case (default: 128)")
      ->check(CLI::Range(1, 100000));
  verb->add_option("--seconds", request.seconds, "begin no case after so long (default: no limit)")
      ->check(CLI::NonNegativeNumber);
  verb->footer(
      "Example: kvlab bench-model --out results/bench_model.h5, then\n"
      "kvlab table results/bench_model.h5 --rows label,batch,tokens --value "
      "step_us,step_p99_us,tokens_per_second");
  verb->callback([arguments, &result] {
    const speed::BenchRequest& wanted = arguments->request;
    const int failed = speed::run_bench(
        wanted, arguments->out, [](const std::string& line) { fmt::print(stderr, "{}\n", line); });
    if (failed > 0) result.code = Exit::some_failed;
  });
}

}  // namespace kvlab::cli
