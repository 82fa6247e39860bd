#pragma once

#include "cache/windows.h"
#include "calibrate/prepare.h"
#include "metrics/measured.h"

namespace kvlab::metrics {

/// How many operations the keys of one layer take, in millions: all KV heads, one sequence of T
/// tokens.
///  - encode_mops, decode_mops: counted on the scalar form of the method's parts, an addition,
///    multiplication, division, square root, rounding, magnitude or comparison being one. Encoding
///    takes in T tokens. Decoding is one step: the new token is encoded, the query rotated, the
///    history decoded, a logit multiplied by its token's scale; dot products, which every method
///    has, are left out.
///  - encode_mops_model, decode_mops_model: the cost model of OScaR's Tables 3 and 4
///    (arXiv:2605.19660). An element takes 5 to quantize, 2·log₂d for a Hadamard transform, 2·d for
///    another rotation, 3 for a token scale; 2 to decode and 1 to scale back. These constants
///    reproduce the table's rows for KIVI, QuaRot and OScaR to all their digits.
/// NaN for parts that the count or the model does not know (codebooks).
Arrays operations(const calibrate::PreparedSide& key, const Settings& side,
                  const cache::Windows& windows, int64_t tokens, int64_t kv_heads, int64_t q_heads,
                  int64_t head_dim);

}  // namespace kvlab::metrics
