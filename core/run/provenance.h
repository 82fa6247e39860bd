#pragma once

#include <map>
#include <string>

#include "config/experiment.h"
#include "run/runner.h"

namespace kvlab::run {

/// Root attributes of a results file: what made it, where and with what (contract section 6).
std::map<std::string, std::string> provenance(const config::Experiment& experiment,
                                              const Options& options);

/// The command as it was typed, words with special characters in quotes.
std::string command_line();

/// Cores this process may use.
int64_t cores();

}  // namespace kvlab::run
