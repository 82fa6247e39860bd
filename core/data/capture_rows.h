#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/h5.h"

namespace kvlab::data {

/// NaN and Inf of a dataset.
struct Nonfinite {
  int64_t count = 0;
  std::vector<int64_t> first;  // index of the first one, empty where there is none
};

/// Reads rows of a dataset [B, H, N, d] as stored, one head after the other in slices of at most
/// `slice_bytes` (at least one row), so that memory beyond `out` stays below one slice. `rows` are
/// ascending indices into N; empty means all. `out` gets B·H·rows·d elements of `type`. Errors as
/// of h5::File. Returns what is not finite among the elements read.
Nonfinite read_rows(const h5::File& file, const std::string& dataset, DType type,
                    const std::vector<int64_t>& rows, void* out,
                    int64_t slice_bytes = int64_t{64} << 20);

}  // namespace kvlab::data
