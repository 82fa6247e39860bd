#pragma once

#include "kvlab/kernels/cpu.h"

/// What the operations demand of their arguments. All throw std::invalid_argument with a sentence.
namespace kvlab::kernels::cpu {

/// The cache itself: a format that kernels serve, pointers, capacities, groups that fit the window
/// rule, and a block table and rings that hold what `tokens` says.
void check_cache(const CacheView& cache);

/// The grids and transforms of a cache's sides against its format.
void check_spec(const CacheView& cache, const EncodeSpec& spec);

void check_rotation(const Rotation& rotation);

void check_threads(int threads);

}  // namespace kvlab::kernels::cpu
