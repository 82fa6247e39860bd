#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "model/config.h"
#include "model/weights.h"

namespace kvlab::model {

/// Names and shapes of the tensors that a decoder of this configuration takes, as transformers
/// names them; of a tied model without the second copy of its embedding.
std::map<std::string, std::vector<int64_t>> tensor_shapes(const Config& config);

/// Reads no more than the files' headers. Throws Error where a tensor is missing, has another type
/// or shape, or is none of these: a feature that the decoder lacks.
void check_weights(const Weights& weights, const Config& config);

}  // namespace kvlab::model
