#pragma once

#include "quant/codec.h"

namespace kvlab::quant {

/// A codec whose rows are those of a token over all KV heads side by side, [1, n, H·d], where
/// others have a row a head (`row: token`: QuaRot's groupsize −1, KVQuant's values). `encode` takes
/// all heads of a layer at once.
std::unique_ptr<Codec> make_token_rows(const Settings& codec);

/// [H, n, d] to [1, n, H·d].
at::Tensor side_by_side(const at::Tensor& x);

}  // namespace kvlab::quant
