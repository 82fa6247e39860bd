#pragma once

#include "kvlab/kernels/cache.h"

namespace kvlab::speed {

/// How the benchmarks make a cache of this format: both sides rotated alike, keys divided by their
/// norm where the format has one, nothing clipped. A dense rotation still needs its matrix.
kernels::EncodeSpec spec_of(const kernels::Format& format, kernels::Rotation::Kind rotation);

/// Per-channel groups of keys, else 1: the group of a window rule.
int window_group(const kernels::Format& format);

}  // namespace kvlab::speed
