#pragma once

#include <memory>

#include "quant/codec.h"
#include "quant/kmeans.h"

namespace kvlab::quant {

/// A token's coordinates some at a time, each vector as the nearest entry of a codebook of its own
/// (arXiv:2608.04074, NOVA-KV): the row is divided by its root mean square, which is stored, and
/// codebooks come from k-means over calibration rows. Codes of 8 bits.
///
/// `shared` is float32 [H, d/width, entries, width], already rounded to its type.
Part vector_codebook_part();
std::unique_ptr<Codec> make_vector_codebook(const Settings& codec, int64_t head_dim);

/// `shared` from calibration values as they would enter the codec: x float32 [H, n, d]. Throws
/// Unsupported where there are fewer rows than entries.
at::Tensor learn_vector_codebook(const Settings& codec, const at::Tensor& x,
                                 const Progress& progress);

}  // namespace kvlab::quant
