#pragma once

#include "encode_job.cuh"

namespace kvlab::kernels::cuda {

/// How a side of a prefill is encoded: by the fast encoders where they can (2 bits, d = 128, 16-bit
/// tokens).
enum class Path : unsigned char {
  general,
  light,  // Hadamard rotation or none
  dense,  // a dense rotation, by a warpgroup's products
};

struct Paths {
  Path key = Path::general;
  Path value = Path::general;
};

Paths paths_of(const CacheView& cache, const EncodeSpec& spec, const TokenSource& source, int step);

/// encode of the sides whose path is `light`.
void encode_light(const CacheView& cache, const EncodeSpec& spec, const TokenSource& source,
                  Paths paths, int max_tokens, Stream stream);

/// Whether the GPU has the products of Path::dense.
bool dense_products();

/// encode of a side whose path is `dense`.
void encode_dense(const CacheView& cache, const EncodeSpec& spec, const TokenSource& source,
                  Side side, int max_tokens, Stream stream);

}  // namespace kvlab::kernels::cuda
