#include <cuda_bf16.h>

#include <stdexcept>

#include "kvlab/kernels/decoder.h"
#include "launch.cuh"

namespace kvlab::kernels::cuda {
namespace {

constexpr int kPiece = 8;  // numbers of a load: 16 bytes
constexpr int kWarp = 32;
constexpr int kNormThreads = 512;
constexpr int kThreads = 256;

struct Piece {
  float x[kPiece];

  __device__ __forceinline__ explicit Piece(const void* from, std::int64_t number) {
    const uint4 words =
        *reinterpret_cast<const uint4*>(static_cast<const __nv_bfloat16*>(from) + number * kPiece);
    const std::uint32_t pairs[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      x[2 * i] = __uint_as_float(pairs[i] << 16);
      x[2 * i + 1] = __uint_as_float(pairs[i] & 0xffff0000u);
    }
  }

  __device__ __forceinline__ void store(void* to, std::int64_t number) const {
    std::uint32_t pairs[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const __nv_bfloat162 pair = __floats2bfloat162_rn(x[2 * i], x[2 * i + 1]);
      pairs[i] = *reinterpret_cast<const std::uint32_t*>(&pair);
    }
    *reinterpret_cast<uint4*>(static_cast<__nv_bfloat16*>(to) + number * kPiece) =
        make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
  }

  __device__ __forceinline__ float squares() const {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kPiece; ++i) sum = fmaf(x[i], x[i], sum);
    return sum;
  }
};

template <int kLanes>
__device__ __forceinline__ float sum_over(float x) {
#pragma unroll
  for (int step = 1; step < kLanes; step *= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
  return x;
}

/// A block has a row. The row is read again for the output: it is in the first level of the cache.
__global__ void __launch_bounds__(kNormThreads)
    norm_kernel(const void* x, const void* weight, void* out, int pieces, float eps) {
  __shared__ float sums[kNormThreads / kWarp];
  const int thread = static_cast<int>(threadIdx.x);
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * pieces;
  wait_for_predecessor();
  release_successor();
  float sum = 0;
  for (int i = thread; i < pieces; i += kNormThreads) sum += Piece(x, row + i).squares();
  sum = sum_over<kWarp>(sum);
  if (thread % kWarp == 0) sums[thread / kWarp] = sum;
  __syncthreads();
  sum = sum_over<kNormThreads / kWarp>(sums[thread % (kNormThreads / kWarp)]);
  const float factor = rsqrtf(sum / static_cast<float>(pieces * kPiece) + eps);
  for (int i = thread; i < pieces; i += kNormThreads) {
    Piece piece(x, row + i);
    const Piece weights(weight, i);
#pragma unroll
    for (int k = 0; k < kPiece; ++k) piece.x[k] *= factor * weights.x[k];
    piece.store(out, row + i);
  }
}

/// kLanes lanes have a head. Lanes of other heads share their warp, so none may leave early.
template <int kDim>
__global__ void __launch_bounds__(kThreads)
    turn_kernel(const __grid_constant__ StepHeads step, float eps) {
  constexpr int kLanes = kDim / kPiece;
  const int turned = step.q_heads + step.kv_heads;
  const int index = static_cast<int>(blockIdx.x * (kThreads / kLanes) + threadIdx.x / kLanes);
  const int piece = static_cast<int>(threadIdx.x % kLanes);
  const bool there = index < step.batch * turned;
  const int sequence = there ? index / turned : 0, head = there ? index % turned : 0;
  float weights[kPiece], turns[kPiece];
#pragma unroll
  for (int i = 0; i < kPiece; ++i) {
    weights[i] = step.weight[head * kDim + piece * kPiece + i];
    turns[i] = step.turn[piece * kPiece + i];
  }
  wait_for_predecessor();
  release_successor();
  const std::int64_t from =
      (static_cast<std::int64_t>(sequence) * (turned + step.kv_heads) + head) * kLanes + piece;
  Piece x(step.heads, from);
  const float factor = rsqrtf(sum_over<kLanes>(x.squares()) / kDim + eps);
  if (!there) return;
#pragma unroll
  for (int i = 0; i < kPiece; i += 2) {
    const float a = x.x[i] * factor * weights[i], b = x.x[i + 1] * factor * weights[i + 1];
    x.x[i] = a * turns[i] - b * turns[i + 1];
    x.x[i + 1] = a * turns[i + 1] + b * turns[i];
  }
  if (head < step.q_heads) {
    x.store(step.query,
            (static_cast<std::int64_t>(sequence) * step.q_heads + head) * kLanes + piece);
  } else {
    x.store(step.heads, from);
  }
}

__global__ void __launch_bounds__(kThreads)
    gate_kernel(const void* gate_up, void* out, std::int64_t count, int pieces) {
  const std::int64_t index = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  wait_for_predecessor();
  release_successor();
  if (index >= count) return;
  const std::int64_t row = index / pieces, at = row * pieces + index;  // rows of 2 · pieces
  Piece x(gate_up, at);
  const Piece up(gate_up, at + pieces);
#pragma unroll
  for (int i = 0; i < kPiece; ++i) x.x[i] *= up.x[i] / (1.0f + __expf(-x.x[i]));
  x.store(out, index);
}

unsigned blocks_of(std::int64_t items, int of_block) {
  return static_cast<unsigned>((items + of_block - 1) / of_block);
}

void require(bool met, const char* what) {
  if (!met) throw std::invalid_argument(what);
}

}  // namespace

void rms_norm(const void* x, const void* weight, void* out, int rows, int width, float eps,
              Stream stream) {
  require(width % kPiece == 0, "rms_norm: the width must be a multiple of 8");
  if (rows <= 0) return;
  launch_after(norm_kernel, dim3(static_cast<unsigned>(rows)), kNormThreads, 0, stream, x, weight,
               out, width / kPiece, eps);
}

void norm_and_turn(const StepHeads& step, float eps, Stream stream) {
  require(step.dim == 64 || step.dim == 128 || step.dim == 256,
          "norm_and_turn: heads must have 64, 128 or 256 channels");
  if (step.batch <= 0) return;
  const auto kernel = step.dim == 64    ? turn_kernel<64>
                      : step.dim == 128 ? turn_kernel<128>
                                        : turn_kernel<256>;
  const std::int64_t heads = static_cast<std::int64_t>(step.batch) * (step.q_heads + step.kv_heads);
  launch_after(kernel, dim3(blocks_of(heads, kThreads / (step.dim / kPiece))), kThreads, 0, stream,
               step, eps);
}

void gate(const void* gate_up, void* out, int rows, int width, Stream stream) {
  require(width % kPiece == 0, "gate: the width must be a multiple of 8");
  if (rows <= 0) return;
  const int pieces = width / kPiece;
  const std::int64_t count = static_cast<std::int64_t>(rows) * pieces;
  launch_after(gate_kernel, dim3(blocks_of(count, kThreads)), kThreads, 0, stream, gate_up, out,
               count, pieces);
}

}  // namespace kvlab::kernels::cuda
