#pragma once

#include "encode_job.cuh"

namespace kvlab::kernels::cuda {

/// Which sides of a prefill the fast encoder takes: 2 bits, d = 128, 16-bit tokens, Hadamard
/// rotation or none.
struct FastSides {
  bool key = false;
  bool value = false;
};

FastSides fast_sides(const CacheView& cache, const EncodeSpec& spec, const TokenSource& source,
                     int step);

/// encode of these sides.
void encode_fast(const CacheView& cache, const EncodeSpec& spec, const TokenSource& source,
                 FastSides sides, int max_tokens, Stream stream);

}  // namespace kvlab::kernels::cuda
