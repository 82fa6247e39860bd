#include <cuda_bf16.h>

#include <cstdint>

#include "cuda/check.h"
#include "traffic.h"

namespace kvlab::bench {
namespace {

constexpr int kThreads = 256;
constexpr int kPiece = 16;  // bytes of a load
constexpr int kTilePieces = 8 * kThreads;

__device__ unsigned sink;

__device__ void add(uint4& sum, const uint4& piece) {
  sum.x ^= piece.x;
  sum.y ^= piece.y;
  sum.z ^= piece.z;
  sum.w ^= piece.w;
}

template <int kLoads>
__global__ void __launch_bounds__(kThreads)
    read_kernel(const uint4* __restrict__ from, std::int64_t pieces) {
  const std::int64_t stride = std::int64_t{gridDim.x} * kThreads;
  std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  uint4 sum{};
  for (; i + (kLoads - 1) * stride < pieces; i += kLoads * stride) {
    uint4 loaded[kLoads];
#pragma unroll
    for (int n = 0; n < kLoads; ++n) loaded[n] = __ldg(from + i + n * stride);
#pragma unroll
    for (int n = 0; n < kLoads; ++n) add(sum, loaded[n]);
  }
  for (; i < pieces; i += stride) add(sum, __ldg(from + i));
  // Never true of random bytes, but the compiler must keep the loads.
  if (sum.x == 0x5a17c0de && sum.y == sum.x && sum.z == sum.x && sum.w == sum.x) sink = sum.x;
}

/// A tile of the input, then its share of the output.
__global__ void __launch_bounds__(kThreads)
    move_kernel(const uint4* __restrict__ from, std::int64_t in, uint4* to, std::int64_t out,
                std::int64_t tiles) {
  for (std::int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    uint4 loaded[kTilePieces / kThreads];
#pragma unroll
    for (int n = 0; n < kTilePieces / kThreads; ++n) {
      const std::int64_t i = tile * kTilePieces + n * kThreads + threadIdx.x;
      loaded[n] = i < in ? __ldg(from + i) : uint4{};
    }
    uint4 sum{};
#pragma unroll
    for (int n = 0; n < kTilePieces / kThreads; ++n) add(sum, loaded[n]);
    const std::int64_t end = out * (tile + 1) / tiles;
    for (std::int64_t o = out * tile / tiles + threadIdx.x; o < end; o += kThreads) to[o] = sum;
  }
}

__device__ std::uint64_t mixed(std::uint64_t z) {
  // splitmix64
  z += 0x9e3779b97f4a7c15u;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return z ^ z >> 31;
}

__global__ void __launch_bounds__(kThreads)
    normal_kernel(__nv_bfloat16* to, std::int64_t count, std::uint64_t seed) {
  const std::int64_t stride = std::int64_t{gridDim.x} * kThreads;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += stride) {
    const std::uint64_t bits = mixed(seed * 0x632be59bd9b4e019u + static_cast<std::uint64_t>(i));
    const float u = (static_cast<float>(bits >> 40) + 1.0f) * 0x1p-24f;
    const float angle = static_cast<float>(bits & 0xffffff) * 0x1p-23f;
    to[i] = __float2bfloat16(sqrtf(-2.0f * logf(u)) * cospif(angle));
  }
}

}  // namespace

void read_only(int way, const void* from, std::int64_t bytes, int multiprocessors, Stream stream) {
  const auto* pieces = static_cast<const uint4*>(from);
  const auto blocks = [&](int of_each) { return static_cast<unsigned>(of_each * multiprocessors); };
  switch (way) {
    case 0:
      read_kernel<4><<<blocks(2), kThreads, 0, stream>>>(pieces, bytes / kPiece);
      break;
    case 1:
      read_kernel<8><<<blocks(2), kThreads, 0, stream>>>(pieces, bytes / kPiece);
      break;
    case 2:
      read_kernel<8><<<blocks(4), kThreads, 0, stream>>>(pieces, bytes / kPiece);
      break;
    default:
      read_kernel<4><<<blocks(8), kThreads, 0, stream>>>(pieces, bytes / kPiece);
  }
  KVLAB_CUDA(cudaGetLastError());
}

void move_bytes(int way, const void* from, std::int64_t in, void* to, std::int64_t out,
                int multiprocessors, Stream stream) {
  const std::int64_t tiles = (in / kPiece + kTilePieces - 1) / kTilePieces;
  const std::int64_t at_once =
      way == 0 ? tiles : std::int64_t{multiprocessors} * (way == 1 ? 4 : 8);
  const auto blocks = static_cast<unsigned>(at_once < tiles ? at_once : tiles);
  move_kernel<<<blocks, kThreads, 0, stream>>>(static_cast<const uint4*>(from), in / kPiece,
                                               static_cast<uint4*>(to), out / kPiece, tiles);
  KVLAB_CUDA(cudaGetLastError());
}

void fill_normal(void* to, std::int64_t count, std::uint64_t seed, Stream stream) {
  normal_kernel<<<1024, kThreads, 0, stream>>>(static_cast<__nv_bfloat16*>(to), count, seed);
  KVLAB_CUDA(cudaGetLastError());
}

}  // namespace kvlab::bench
