#pragma once

#include <cstdint>
#include <vector>

namespace kvlab::bench {

/// 0 … count − 1 in random order, the same each time.
std::vector<std::int32_t> permutation(int count);

/// An orthogonal matrix [d, d] without structure.
std::vector<float> random_rotation(int dim);

}  // namespace kvlab::bench
