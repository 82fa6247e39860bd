#include <fmt/format.h>

#include <memory>

#include "base/code_version.h"
#include "base/utf8.h"
#include "cli/verbs.h"
#include "report/table.h"
#include "report/verdict.h"
#include "store/store.h"

namespace kvlab::cli {

void add_claims(CLI::App& app, Exit&) {
  struct Arguments {
    std::string file;
    bool as_json = false;
  };
  auto arguments = std::make_shared<Arguments>();
  CLI::App* verb = app.add_subcommand(
      "claims", "Verdicts on published claims: upheld, reversed or undecided in this file");
  verb->add_option("file", arguments->file, "results file")->required();
  verb->add_flag("--json", arguments->as_json, "print JSON");
  verb->footer(
      "Example: kvlab claims results/oscar_ots_parts.h5\n"
      "A claim compares rows that share dataset, layer, seed and sweep point and differ in what\n"
      "the claim names. Fewer than 16 passages (dataset items) decide nothing; the ratio is shown\n"
      "all the same. effect and interval of --json are logarithms of ratios.");
  verb->callback([arguments] {
    const store::Results results = store::read_results(arguments->file, store::Detail::blocks);
    const auto findings = report::judge(results, report::published_claims());
    if (arguments->as_json) {
      fmt::print("{}\n", json_text(report::findings_json(findings), 2));
    } else {
      fmt::print("{}", report::findings_text(findings));
    }
    for (const std::string& warning : report::table_warnings(results, code_version())) {
      fmt::print(stderr, "kvlab: warning: {}\n", warning);
    }
  });
}

}  // namespace kvlab::cli
