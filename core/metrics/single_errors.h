#pragma once

#include <optional>

#include "metrics/attention.h"
#include "metrics/context.h"

namespace kvlab::metrics {

/// Some probes of one query head in float32, and the history that they read decoded keys of.
struct SingleProbes {
  at::Tensor q;          // [P, d]
  at::Tensor positions;  // int64 [P]
  at::Tensor k_read;     // [n, d] decoded keys of tokens [begin, begin + n); undefined: none
  at::Tensor v;          // [T, d] captured values
  at::Tensor unread;     // bool [P, n]: the probe does not read this token decoded
  int64_t begin = 0;
};

/// What the decoded keys alone do to attention: all but value_error of ProbeErrors, by differences
/// of logits, so that tokens which are read as captured count for nothing. Nothing where float32
/// is not enough: logits that are not finite or grow by tens, or a softmax whose mass is elsewhere.
std::optional<ProbeErrors> key_errors(const ExactSingle& exact, const SingleProbes& probes);

}  // namespace kvlab::metrics
