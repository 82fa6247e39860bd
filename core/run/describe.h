#pragma once

#include <ATen/ATen.h>

#include "config/plan.h"
#include "data/probes.h"
#include "model/needles_file.h"

namespace kvlab::run {

data::ProbeChoice choice(const config::Probes& probes);

/// Tokens over which the first greedy one that differs is looked for (contract section 7).
inline constexpr int64_t kContinuation = 256;

/// Shapes and identity of a dataset item, for planning: probes are what is drawn for a synthetic
/// one, measures how far a model runs. Hashes a capture's bytes once in this process.
config::DatasetInfo describe(const config::DatasetItem& item, const config::Probes& probes,
                             const std::vector<std::string>& measures);

/// What a whole-model item is run on: a passage's tokens int64 [T], or the trials of a task. Throws
/// Error where the file lacks them.
at::Tensor passage(const config::DatasetItem& item);
model::Needles needles(const config::DatasetItem& item);

/// config::load() with mistakes in the files of datasets among all others.
config::Experiment load(const std::filesystem::path& file, const std::vector<std::string>& edits);

/// The experiment's plan, with its datasets described and what its backend cannot take left out.
config::Plan make_plan(const config::Experiment& experiment);

}  // namespace kvlab::run
