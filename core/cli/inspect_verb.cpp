#include <fmt/format.h>

#include <memory>

#include "base/error.h"
#include "base/schemas.h"
#include "base/utf8.h"
#include "calibrate/rotation_file.h"
#include "cli/verbs.h"
#include "data/capture_info.h"
#include "report/inspect.h"
#include "report/verify.h"

namespace kvlab::cli {
namespace {

struct Arguments {
  std::string file;
  bool verify = false, as_json = false;
};

void execute(const Arguments& arguments, Exit& result) {
  report::Inspection inspection = report::inspect(arguments.file);
  if (arguments.verify) {
    if (inspection.schema == kCaptureSchema) {
      try {
        data::describe_capture(arguments.file);
      } catch (const Error& error) {
        inspection.problems.emplace_back(error.what());
      }
    }
    report::verify(&inspection);
    // What one dataset shows is told already; here is what several show together.
    if (inspection.schema == kRotationSchema && inspection.problems.empty()) {
      try {
        calibrate::read_rotation_file(arguments.file);
      } catch (const Error& error) {
        inspection.problems.emplace_back(error.what());
      }
    }
  }
  if (arguments.as_json) {
    fmt::print("{}\n", json_text(report::inspection_json(inspection), 2));
  } else {
    fmt::print("{}", report::inspection_text(inspection));
  }
  if (!inspection.problems.empty()) result.code = Exit::some_failed;
}

}  // namespace

void add_inspect(CLI::App& app, Exit& result) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App* verb =
      app.add_subcommand("inspect", "Show what a capture, rotation or results file holds");
  verb->add_option("file", arguments->file, "HDF5 file")->required();
  verb->add_flag("--verify", arguments->verify,
                 "read and check all of it; exit code 1 where something is wrong");
  verb->add_flag("--json", arguments->as_json, "print JSON");
  verb->footer("Example: kvlab inspect datasets/smollm2/eval_austen.h5 --verify");
  verb->callback([arguments, &result] { execute(*arguments, result); });
}

}  // namespace kvlab::cli
