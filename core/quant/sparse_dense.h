#pragma once

#include <memory>

#include "quant/codec.h"
#include "quant/kmeans.h"

namespace kvlab::quant {

/// KVQuant's non-uniform codes with sparse outliers (arXiv:2401.18079): values are brought to
/// [−1, 1] by a range without the outliers, dense codes take the nearest of some signposts (k-means
/// over the calibration values of the layer, weighted where there are weights), outliers are kept
/// as they are with their places. On axis channel the ranges are calibrated, one a channel; on axis
/// token they are those of the token's own row.
///
/// `shared` is float32 [H, s]: on axis channel a head's lower ends [d], upper ends [d] and the
/// signposts [2^bits]; on axis token the signposts; with signpost_norm a factor and an offset
/// behind them. Places and counts of outliers are bytes, in rows of more than 255 channels 16 bits.
Part sparse_dense_part();
std::unique_ptr<Codec> make_sparse_dense(const Settings& codec, int64_t head_dim);

/// `shared` from calibration values as they would enter the codec: x float32 [H, n, d]; weight
/// likewise, or undefined.
at::Tensor learn_sparse_dense(const Settings& codec, const at::Tensor& x, const at::Tensor& weight);

}  // namespace kvlab::quant
