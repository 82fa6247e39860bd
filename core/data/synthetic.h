#pragma once

#include <cstdint>

#include "base/part.h"
#include "data/description.h"
#include "data/probes.h"
#include "data/sample.h"

namespace kvlab::data {

/// Generates a sample of one layer (layer 0). Bit-equal by (params, seed) on every machine; a
/// longer sample begins with the shorter one, and the choice of probes only selects queries. W_O is
/// float32, all else of `dtype`. Throws Error where the parameters do not fit together
/// (refuse_synthetic).
Sample make_synthetic(const Settings& params, int64_t seed, const ProbeChoice& probes);

/// Shapes and identity of what make_synthetic makes, or of what it is asked for and refuses.
Description describe_synthetic(const Settings& params, const ProbeChoice& probes);

}  // namespace kvlab::data
