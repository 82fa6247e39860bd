#pragma once

#include "attend_rotate.cuh"
#include "mma.cuh"

/// Queries of the attention kernels in shared memory.
namespace kvlab::kernels::cuda {

/// Queries of one row tile in shared memory, float32, rows kRowStride apart; rows past the last are
/// 0.
template <int kDim>
struct QueryTile {
  float* raw;
  float* rotated;  // times key_rotation; the same memory where there is none
};

/// Eight numbers from `from` on, of `type`.
__device__ __forceinline__ void load_eight(const void* from, std::int64_t offset, Type type,
                                           float (&x)[8]) {
  if (type == Type::f32) {
    const auto* fours = reinterpret_cast<const float4*>(static_cast<const float*>(from) + offset);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float4 four = fours[i];
      x[4 * i] = four.x, x[4 * i + 1] = four.y, x[4 * i + 2] = four.z, x[4 * i + 3] = four.w;
    }
    return;
  }
  const uint4 raw =
      *reinterpret_cast<const uint4*>(static_cast<const std::uint16_t*>(from) + offset);
  const std::uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 pair = type == Type::f16 ? __half22float2(half2_of(words[i]))
                                          : make_float2(__uint_as_float(words[i] << 16),
                                                        __uint_as_float(words[i] & 0xffff0000u));
    x[2 * i] = pair.x, x[2 * i + 1] = pair.y;
  }
}

template <int kDim>
__device__ __forceinline__ void load_queries(const AttendParams& p, const BlockPlace& at,
                                             float* shared, int rows) {
  constexpr int kOfRow = kDim / 8;  // threads
  const int first = at.row_tile * rows, count = row_count(p);
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < rows * kOfRow;
       i += static_cast<int>(blockDim.x)) {
    const int row = i / kOfRow, column = i % kOfRow * 8;
    float x[8] = {};
    if (first + row < count) {
      load_eight(p.args.query, row_offset(p, at, first + row) * kDim + column, p.args.query_type,
                 x);
    }
    float* to = shared + row * kRowStride<kDim> + column;
    *reinterpret_cast<float4*>(to) = make_float4(x[0], x[1], x[2], x[3]);
    *reinterpret_cast<float4*>(to + 4) = make_float4(x[4], x[5], x[6], x[7]);
  }
}

/// After load_queries; synchronises the block.
template <int kDim>
__device__ __forceinline__ QueryTile<kDim> rotate_queries(const AttendParams& p,
                                                          const BlockPlace& at, float* shared,
                                                          int rows) {
  __syncthreads();
  QueryTile<kDim> tile{shared, shared};
  if (p.args.key_rotation.kind != Rotation::Kind::none) {
    tile.rotated = shared + rows * kRowStride<kDim>;
    rotate_rows<false, kDim>(p.args.key_rotation, at.head, tile.raw, tile.rotated, rows);
    __syncthreads();
  }
  return tile;
}

/// q·centre of a row in base-2 logits, by a whole warp; 0 where there is no centre.
template <int kDim>
__device__ __forceinline__ float center_logit(const AttendParams& p, int head,
                                              const float* query_row, int lane, float scale_log2) {
  if (!p.args.key_center) return 0.0f;
  float sum = 0.0f;
#pragma unroll
  for (int k = lane; k < kDim; k += kWarp)
    sum = fmaf(query_row[k], p.args.key_center[head * kDim + k], sum);
#pragma unroll
  for (int step = 16; step; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
  return sum * scale_log2;
}

}  // namespace kvlab::kernels::cuda
