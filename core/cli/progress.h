#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "run/runner.h"

namespace kvlab::cli {

/// Shows a run on stderr: a bar with rate and time left on a terminal, one line a cell elsewhere,
/// only warnings and failures where `quiet`.
std::unique_ptr<run::Observer> make_progress(bool quiet);

/// "1 h 02 min", "3 min 20 s", "12 s", "0.4 s".
std::string duration(double seconds);

/// One line that names a cell: "smollm2 layer 10, oscar_ots".
std::string name_of(const config::Cell& cell);

}  // namespace kvlab::cli
