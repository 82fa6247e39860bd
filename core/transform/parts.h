#pragma once

#include <vector>

#include "base/part.h"
#include "transform/hadamard.h"

namespace kvlab::transform {

/// Every choice for `space`, `center`, `reorder`, `basis`, `rotate` and `token_scale` of a side,
/// with its parameters.
const std::vector<Part>& transform_parts();

}  // namespace kvlab::transform
