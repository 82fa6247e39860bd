#pragma once

#include <string>
#include <vector>

#include "calibrate/prepare.h"

namespace kvlab::metrics {

/// Raw timings of a packed backend on one layer, nanoseconds.
struct KernelTime {
  std::vector<double> encode;  // a prefill of the whole sample: windows and blocks
  std::vector<double> decode;  // attention of one query token a sequence over the whole cache
};

/// Times a cache that holds the sample, after its attention has been checked against float32
/// attention over what it dequantizes to. Throws Error where that check fails, Unsupported where
/// the backend lacks the recipe.
KernelTime time_kernels(const data::Sample& sample, const calibrate::Prepared& method,
                        const method::Recipe& recipe, const std::string& backend);

double median(std::vector<double> samples);

}  // namespace kvlab::metrics
