#pragma once

#include <cstdint>

namespace kvlab::data {

// Functions of + − × ÷ √ and exact scaling by powers of two only. IEEE 754 fixes each of these
// operations to the last bit (and this tree is compiled without contraction), so results are equal
// on every machine; those of the C library's log and exp are not.

/// Natural logarithm of a positive, normal x; relative error below 1e-15 away from 1.
double exact_log(double x);

/// e^x for |x| ≤ 700; relative error below 1e-14.
double exact_exp(double x);

/// Cosine of `turns` full turns; absolute error below 1e-13 for |turns| ≤ 2^24.
double exact_cos_turns(double turns);

/// The x with Φ(x) = p, for 2^-33 ≤ p ≤ 1 − 2^-33; relative error below 1e-12.
/// M. J. Wichura, Algorithm AS 241 (PPND16), Applied Statistics 37 (1988), without its part for p <
/// e^-25.
double inverse_normal(double p);

/// Standard normal deviates from 32 random bits each, to the last bit:
/// inverse_normal((word + 1/2) / 2^32), |x| < 6.4.
void normals_from(const uint32_t* words, int64_t count, double* out);

}  // namespace kvlab::data
