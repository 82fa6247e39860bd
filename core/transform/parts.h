#pragma once

#include <vector>

#include "base/part.h"

namespace kvlab::transform {

/// Every choice for `rotate`, `center` and `token_scale` of a side, with its parameters.
const std::vector<Part>& transform_parts();

/// Whether a Hadamard matrix of this size can be built here, see hadamard.h.
bool has_hadamard(int64_t size);

}  // namespace kvlab::transform
