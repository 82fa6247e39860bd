#pragma once

#include <ATen/ATen.h>

#include <array>
#include <map>
#include <string>

namespace kvlab::metrics {

/// Metric name to its array as stored: float64 [Hkv], [Hq] or [].
using Arrays = std::map<std::string, at::Tensor>;

/// The dimensions of a [B, Hkv, n] array that a per-head metric pools.
inline constexpr std::array<int64_t, 2> kSequenceAndToken = {0, 2};

/// a/b where 0/0 is 0 (contract section 5).
inline at::Tensor ratio(const at::Tensor& a, const at::Tensor& b) {
  return (a / b).masked_fill_(a.eq(0).logical_and(b.eq(0)), 0.0);
}

/// The summary's one number: the plain mean over heads, for counts the sum.
double scalar_of(const std::string& metric, const at::Tensor& array);

}  // namespace kvlab::metrics
