#pragma once

#include <cstdint>

#include "kvlab/kernels/cuda.h"

/// Kernels that only move bytes: the floor under the others. All memory is the GPU's, all sizes are
/// whole pieces of 16 bytes.
namespace kvlab::bench {

using kernels::cuda::Stream;

/// Ways of doing the same; a floor is the fastest of them.
inline constexpr int kReadWays = 4;
inline constexpr int kMoveWays = 3;

/// Reads `bytes` and writes nothing.
void read_only(int way, const void* from, std::int64_t bytes, int multiprocessors, Stream stream);

/// Reads `in` bytes and writes `out` bytes, as an encoder does.
void move_bytes(int way, const void* from, std::int64_t in, void* to, std::int64_t out,
                int multiprocessors, Stream stream);

/// Normal numbers as bf16.
void fill_normal(void* to, std::int64_t count, std::uint64_t seed, Stream stream);

}  // namespace kvlab::bench
