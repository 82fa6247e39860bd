#include <fmt/format.h>

#include <memory>

#include "base/code_version.h"
#include "base/error.h"
#include "base/names.h"
#include "base/utf8.h"
#include "cli/verbs.h"
#include "report/difference.h"
#include "report/table.h"
#include "store/store.h"

namespace kvlab::cli {
namespace {

struct Arguments {
  std::string a, b;
  std::vector<std::string> limits, allowed, metrics;
  bool as_json = false;
};

report::Allowed allowed_of(const std::vector<std::string>& words) {
  report::Allowed allowed;
  for (const std::string& word : words) {
    if (word == "inputs") {
      allowed.inputs = true;
    } else if (word == "gpu") {
      allowed.gpu = true;
    } else {
      throw Error(fmt::format("--allow: expected inputs or gpu, found '{}'{}", word,
                              did_you_mean(word, {"inputs", "gpu"})));
    }
  }
  return allowed;
}

void execute(const Arguments& arguments, Exit& result) {
  std::vector<report::Limit> limits;
  for (const std::string& text : arguments.limits) limits.push_back(report::parse_limit(text));
  const report::Allowed allowed = allowed_of(arguments.allowed);
  const store::Results a = store::read_results(arguments.a, store::Detail::blocks);
  const store::Results b = store::read_results(arguments.b, store::Detail::blocks);
  const report::Difference difference = report::difference(a, b, allowed, limits);
  for (const std::string& name : arguments.metrics) {
    report::check_metric(difference, name, "--value");
  }
  if (arguments.as_json) {
    fmt::print("{}\n", json_text(report::difference_json(difference), 2));
  } else {
    fmt::print("{}", report::difference_text(difference, limits, arguments.metrics));
  }
  if (!difference.failures.empty()) result.code = Exit::some_failed;
}

}  // namespace

void add_diff(CLI::App& app, Exit& result) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App* verb = app.add_subcommand(
      "diff", "Compare two results files cell by cell; exit 1 where a metric got too much worse");
  verb->add_option("a", arguments->a, "results file to compare with")->required();
  verb->add_option("b", arguments->b, "results file to compare")->required();
  verb->add_option("--fail-above", arguments->limits,
                   "METRIC=X: exit 1 where a cell of B is worse than A's by more than X (in the "
                   "metric's unit, or a share such as 5%); may be repeated")
      ->take_all()
      ->allow_extra_args(false);
  verb->add_option("--value", arguments->metrics, "metrics to show")
      ->take_all()
      ->allow_extra_args(false)
      ->delimiter(',');
  verb->add_option("--allow", arguments->allowed,
                   "what may differ between the files: inputs (data, calibration, probes), gpu")
      ->take_all()
      ->allow_extra_args(false)
      ->delimiter(',');
  verb->add_flag("--json", arguments->as_json, "print JSON, with every metric");
  verb->footer(
      "Example: kvlab diff results/before.h5 results/after.h5 --fail-above wo_rel=0.001\n"
      "Rows pair by label, dataset, layer, seed, backend and sweep point. Lines without a change\n"
      "are counted and not shown. Intervals are of the mean of B − A, resampling passages.");
  verb->callback([arguments, &result] { execute(*arguments, result); });
}

}  // namespace kvlab::cli
