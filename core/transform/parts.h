#pragma once

#include <string>
#include <vector>

#include "base/part.h"
#include "transform/hadamard.h"

namespace kvlab::transform {

/// Every choice for `space`, `center`, `reorder`, `basis`, `rotate` and `token_scale` of a side,
/// with its parameters.
const std::vector<Part>& transform_parts();

/// A way of OSCAR's code to make a rotation: u the eigenvectors, h the Hadamard matrix, p the bit
/// reversal, from left to right as row vectors meet them.
struct Composition {
  std::string name, factors;
};

/// The code's own first.
const std::vector<Composition>& compositions();
std::string factors_of(const std::string& composition);

/// Tokens of a quantized side (all keys filled) that are encoded together: those that share
/// parameters or are mixed.
int64_t token_group(const Settings& side);

}  // namespace kvlab::transform
