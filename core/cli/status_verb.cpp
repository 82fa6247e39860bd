#include <fmt/format.h>

#include <memory>

#include "base/code_version.h"
#include "base/utf8.h"
#include "cli/verbs.h"
#include "report/status.h"
#include "store/store.h"

namespace kvlab::cli {

void add_status(CLI::App& app, Exit&) {
  struct Arguments {
    std::string file;
    bool as_json = false;
  };
  auto arguments = std::make_shared<Arguments>();
  CLI::App* verb = app.add_subcommand(
      "status", "Count the cells of a results file by state and show stale ones");
  verb->add_option("file", arguments->file, "results file")->required();
  verb->add_flag("--json", arguments->as_json, "print JSON");
  verb->footer(
      "Example: kvlab status results/demo.h5\n"
      "Works while a run is writing the file.");
  verb->callback([arguments] {
    const store::Status status = store::status(arguments->file, code_version());
    if (arguments->as_json) {
      fmt::print("{}\n", json_text(report::status_json(status, arguments->file), 2));
    } else {
      fmt::print("{}", report::status_text(status, arguments->file));
    }
  });
}

}  // namespace kvlab::cli
