#pragma once

#include <memory>

#include "quant/codec.h"

namespace kvlab::quant {

/// Scalar levels for normalized coordinates of one token: groups of channels are brought to unit
/// variance by their norm (arXiv:2504.19874, TurboQuant) or by their mean and deviation (the
/// Lloyd–Max form of OSCAR's code), each coordinate takes the nearest level. Held: one code a
/// channel; a norm, or a scale and a zero point, a group. Arithmetic is float64.
Part codebook_part();
std::unique_ptr<Codec> make_codebook(const Settings& codec, int64_t head_dim);

/// The same with one bit less for the levels, and a bit for the sign of each coordinate of
/// the residual under an orthogonal matrix S, with the residual's norm: x̂ +
/// √(π/2)/√d·‖r‖·Sᵀsign(S·r) (TurboQuant's inner-product form). `shared` is S, float64 [H or 1, d,
/// d].
Part sketched_codebook_part();
std::unique_ptr<Codec> make_sketched_codebook(const Settings& codec, int64_t head_dim);

/// Whether encoding needs a matrix S from the seed.
bool needs_sketch(const Settings& codec);

}  // namespace kvlab::quant
