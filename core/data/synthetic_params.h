#pragma once

#include <vector>

#include "base/part.h"

namespace kvlab::data {

/// Parameters of a `source: synthetic` dataset item. The seed is no parameter: it comes from the cell.
/// Defaults are the figures of methods.md section 20 ("Synthesis recipe" and "Norm patterns").
const std::vector<Param>& synthetic_params();

}  // namespace kvlab::data
