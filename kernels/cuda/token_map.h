#pragma once

#include "kvlab/kernels/cuda.h"

namespace kvlab::kernels::cuda {

struct TokenMap;

/// The map of a source's keys or values, of heads of 128 channels; its addresses and strides must
/// be multiples of 16 bytes.
TokenMap map_of(const void* tokens, const CacheView& cache, const TokenSource& source);

}  // namespace kvlab::kernels::cuda
