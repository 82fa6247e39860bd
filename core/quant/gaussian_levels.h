#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kvlab::quant {

/// Lloyd's and Max's levels for N(0, 1) at `bits` bits, ascending: each level is the mean of the
/// normal between the midpoints to its neighbours, to 1e-13.
std::vector<double> gaussian_levels(int64_t bits);

/// Levels as a setting gives them: "gaussian", or numbers between commas, ascending. Nothing where
/// the text is neither.
std::vector<double> levels_from(const std::string& text, int64_t bits);

}  // namespace kvlab::quant
