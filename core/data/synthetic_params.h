#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/part.h"

namespace kvlab::data {

/// Parameters of a `source: synthetic` dataset item. The seed is no parameter: it comes from the
/// cell. Defaults are the figures of methods.md section 20 ("Synthesis recipe" and "Norm
/// patterns").
const std::vector<Param>& synthetic_params();

/// A sentence why these parameters cannot be had together, or what is wrong with the text of one;
/// nothing where they can. Types and ranges of single parameters are checked by whoever reads them.
/// Missing ones count as default.
std::optional<std::string> refuse_synthetic(const Settings& params);

/// Whether another seed gives another sample.
bool synthetic_uses_seed(const Settings& params);

}  // namespace kvlab::data
