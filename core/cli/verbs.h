#pragma once

#include <CLI/CLI.hpp>

namespace kvlab::cli {

/// What a verb leaves for the process: an exit code of contract section 2.
struct Exit {
  static constexpr int done = 0;
  static constexpr int some_failed = 1;
  static constexpr int wrong_input = 2;
  static constexpr int interrupted = 130;

  int code = done;
};

// Each adds one verb to the program; the verb runs when the command line is parsed and sets the
// exit code.
void add_run(CLI::App& app, Exit& result);
void add_validate(CLI::App& app, Exit& result);
void add_list(CLI::App& app, Exit& result);
void add_show(CLI::App& app, Exit& result);
void add_status(CLI::App& app, Exit& result);
void add_merge(CLI::App& app, Exit& result);
void add_table(CLI::App& app, Exit& result);
void add_diff(CLI::App& app, Exit& result);
void add_claims(CLI::App& app, Exit& result);
void add_capture(CLI::App& app, Exit& result);
void add_calibrate(CLI::App& app, Exit& result);
void add_convert(CLI::App& app, Exit& result);
void add_inspect(CLI::App& app, Exit& result);
void add_bench_model(CLI::App& app, Exit& result);

}  // namespace kvlab::cli
