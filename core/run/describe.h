#pragma once

#include "config/plan.h"
#include "data/probes.h"

namespace kvlab::run {

data::ProbeChoice choice(const config::Probes& probes);

/// Shapes and identity of a dataset item, for planning. Hashes a capture's bytes once in this
/// process.
config::DatasetInfo describe(const config::DatasetItem& item, const config::Probes& probes);

/// The experiment's plan, with its datasets described and what its backend cannot take left out.
config::Plan make_plan(const config::Experiment& experiment);

}  // namespace kvlab::run
