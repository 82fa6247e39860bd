#pragma once

#include <cstdint>
#include <vector>

namespace kvlab::bench {

/// 0 … count − 1 in random order, the same each time.
std::vector<std::int32_t> permutation(int count);

/// Normal numbers in bf16.
std::vector<std::uint16_t> normals(std::int64_t count, unsigned seed);

/// An orthogonal matrix [d, d] without structure.
std::vector<float> random_rotation(int dim);

}  // namespace kvlab::bench
