#pragma once

#include <memory>

#include "quant/codec.h"

namespace kvlab::quant {

/// Per-channel groups in which the channels of largest mean |x| over each `boost_tokens` tokens get
/// `boost_bits` bits on the same range (arXiv:2511.18643, Kitty). Held: a plane of the low `bits`
/// bits of every code, one of the promoted channels' other bits, and the promoted channels.
Part boosted_part();

std::unique_ptr<Codec> make_boosted(const Settings& codec, int64_t head_dim);

}  // namespace kvlab::quant
