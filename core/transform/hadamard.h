#pragma once

#include <cstdint>
#include <vector>

namespace kvlab::transform {

/// Whether a Hadamard matrix of this size can be built: Kronecker products of Sylvester's 2 and of
/// Paley's constructions (q + 1 for primes q ≡ 3 mod 4, 2(q + 1) for primes q ≡ 1 mod 4).
bool has_hadamard(int64_t size);

/// A Hadamard matrix with entries ±1, row-major [size, size]; powers of two are Sylvester's. Throws
/// Unsupported where none can be built.
std::vector<int8_t> hadamard_signs(int64_t size);

/// `index` with its lowest `bits` bits in reverse order.
int64_t reverse_bits(int64_t index, int bits);

}  // namespace kvlab::transform
