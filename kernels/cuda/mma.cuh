#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

/// Warp-wide matrix products and moves, one instruction each. Fragments as in the PTX manual: lane
/// 4g + t.
namespace kvlab::kernels::cuda {

/// c[16 rows, 8 columns] += a[16, 16]·b[16, 8], fp16 in, fp32 out.
__device__ __forceinline__ void mma_f16(float (&c)[4], std::uint32_t a0, std::uint32_t a1,
                                        std::uint32_t a2, std::uint32_t a3, std::uint32_t b0,
                                        std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void mma_bf16(float (&c)[4], std::uint32_t a0, std::uint32_t a1,
                                         std::uint32_t a2, std::uint32_t a3, std::uint32_t b0,
                                         std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/// c[16, 8] += a[16, 32]·b[32, 8], unsigned times signed bytes, 32-bit sums.
__device__ __forceinline__ void mma_u8s8(int (&c)[4], std::uint32_t a0, std::uint32_t a1,
                                         std::uint32_t a2, std::uint32_t a3, std::uint32_t b0,
                                         std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/// Transpose of an 8 × 8 matrix of 16-bit numbers: lane (g, t) gives row g, columns 2t and 2t + 1,
/// and gets column g.
__device__ __forceinline__ std::uint32_t transpose_8x8(std::uint32_t x) {
  std::uint32_t y;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}

__device__ __forceinline__ std::uint32_t bits(__half2 x) {
  return *reinterpret_cast<std::uint32_t*>(&x);
}
__device__ __forceinline__ std::uint32_t bits(__nv_bfloat162 x) {
  return *reinterpret_cast<std::uint32_t*>(&x);
}
__device__ __forceinline__ __half2 half2_of(std::uint32_t x) {
  return *reinterpret_cast<__half2*>(&x);
}

/// A pair of floats as two pairs of 16-bit numbers whose sum is the pair to twice the precision.
template <bool kBf16>
struct SplitPair {
  std::uint32_t high, low;

  __device__ __forceinline__ SplitPair(float x, float y) {
    if constexpr (kBf16) {
      const __nv_bfloat162 h = __floats2bfloat162_rn(x, y);
      high = bits(h);
      low = bits(__floats2bfloat162_rn(x - __low2float(h), y - __high2float(h)));
    } else {
      const __half2 h = __floats2half2_rn(x, y);
      high = bits(h);
      low = bits(__floats2half2_rn(x - __low2float(h), y - __high2float(h)));
    }
  }
};

template <bool kBf16>
__device__ __forceinline__ void mma_16(float (&c)[4], std::uint32_t a0, std::uint32_t a1,
                                       std::uint32_t a2, std::uint32_t a3, std::uint32_t b0,
                                       std::uint32_t b1) {
  if constexpr (kBf16) {
    mma_bf16(c, a0, a1, a2, a3, b0, b1);
  } else {
    mma_f16(c, a0, a1, a2, a3, b0, b1);
  }
}

}  // namespace kvlab::kernels::cuda
