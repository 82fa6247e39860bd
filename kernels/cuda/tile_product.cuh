#pragma once

#include "token_stage.cuh"

/// Rotating a tile: its product with a matrix that a thread block keeps in shared memory, by the
/// products of a warpgroup (four warps, 64 tokens; compute capability 9.0a) or by each warp's own.
namespace kvlab::kernels::cuda {

enum class Product : unsigned char {
  none,   // tiles stay as they are
  signs,  // a Hadamard rotation up to √d: exact in 16 bits
  dense,
};

/// Whose rows a tile has (fast_tile.cuh).
enum class Order : unsigned char { keys, values, channels };

/// A matrix as a sum of 16-bit ones: a dense rotation to about the precision of float32, by three
/// of bf16 or two of fp16, which has more bits but a smaller range and is scaled up.
template <bool kBf16, Product kProduct>
struct Parts {
  static constexpr bool dense = kProduct == Product::dense;
  static constexpr int count = kProduct == Product::none ? 0 : !dense ? 1 : kBf16 ? 3 : 2;
  static constexpr float scale = dense && !kBf16 ? 256.0f : 1.0f;
};

/// [channels k / 8: 16] pieces of 128 columns × 8 k, a column's 16 bytes side by side: as wgmma
/// wants it without swizzling.
inline constexpr int kMatrixPieceBytes = kFastDim * 16;
inline constexpr int kMatrixBytes = kFastDim * kFastDim * 2;

/// Channel of column n of the product: of a tile's order.
KVLAB_HD constexpr unsigned channel_of_column(Order order, unsigned n) {
  const unsigned f = n / 16;
  switch (order) {
    case Order::keys:
      return 32 * (f / 2) + 8 * (n % 8 / 2) + 4 * (f % 2) + 2 * (n / 8 % 2) + n % 2;
    case Order::values:
      return n;
    case Order::channels:
      break;
  }
  return 32 * (n % 8 / 2) + 8 * (f % 4) + 4 * (n % 2) + 2 * (n / 64) + n / 8 % 2;
}

/// Writes a side's matrix to shared memory, by all threads. `rotation`: of a dense one, [d, d].
template <bool kBf16, Product kProduct>
__device__ void fill_matrix(const float* rotation, Order order, unsigned char* matrix) {
  using P = Parts<kBf16, kProduct>;
  constexpr std::uint32_t ones = kBf16 ? 0x3f803f80u : 0x3c003c00u;
#pragma unroll(kProduct == Product::dense ? 2 : 1)
  for (unsigned task = threadIdx.x; task < kFastDim / 8 * kFastDim; task += blockDim.x) {
    const unsigned row = task / kFastDim * 8;  // and the seven behind it
    const unsigned column = channel_of_column(order, task % kFastDim);
    std::uint32_t words[P::count > 0 ? P::count : 1][4];
    if constexpr (kProduct == Product::signs) {
      const std::uint32_t whole = __popc(row & column) % 2 ? 0x80008000u : 0u;
#pragma unroll
      for (unsigned i = 0; i < 4; ++i) {
        const std::uint32_t both = __popc(2 * i & column) % 2 ? 0x80008000u : 0u;
        words[0][i] = ones ^ whole ^ both ^ (column % 2 << 31);
      }
    } else if constexpr (kProduct == Product::dense) {
      float rest[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        rest[i] = __ldg(rotation + (row + i) * kFastDim + column) * P::scale;
      }
#pragma unroll
      for (int part = 0; part < P::count; ++part) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const std::uint32_t pair = pair_of<kBf16>(rest[2 * i], rest[2 * i + 1]);
          const float2 taken = floats_of<kBf16>(pair);
          rest[2 * i] = add(rest[2 * i], -taken.x);
          rest[2 * i + 1] = add(rest[2 * i + 1], -taken.y);
          words[part][i] = pair;
        }
      }
    }
#pragma unroll
    for (int part = 0; part < P::count; ++part) {
      reinterpret_cast<uint4*>(matrix + part * kMatrixBytes)[task] =
          make_uint4(words[part][0], words[part][1], words[part][2], words[part][3]);
    }
  }
}

/// Makes what threads wrote to shared memory visible to the products; before a barrier.
__device__ __forceinline__ void publish_matrix() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

/// A product's operand in shared memory, as wgmma is told of it and as mma.sync's registers are
/// read from it: row (or column) `row` + lane / 4, of k and k + 1 of lane % 4 · 2.
struct StageOperand {
  const unsigned char* from;

  __device__ __forceinline__ std::uint64_t descriptor() const {
    const auto address = static_cast<std::uint32_t>(__cvta_generic_to_shared(from));
    // Swizzled in 128 bytes; 8 rows are 1024 bytes from the next.
    return static_cast<std::uint64_t>(address >> 4 & 0x3fffu) | std::uint64_t{1} << 16 |
           std::uint64_t{1024 >> 4} << 32 | std::uint64_t{1} << 62;
  }
  /// What a descriptor grows by up to k.
  KVLAB_HD static constexpr std::uint64_t ahead(int k) {
    return static_cast<std::uint64_t>((k / 64 * kStageHalfBytes + k % 64 * 2) >> 4);
  }
  __device__ __forceinline__ std::uint32_t word(int row, int k, int lane) const {
    return *reinterpret_cast<const std::uint32_t*>(from + stage_byte(row + lane / 4, k / 8) +
                                                   lane % 4 * 4);
  }
};
struct MatrixOperand {
  const unsigned char* from;

  __device__ __forceinline__ std::uint64_t descriptor() const {
    const auto address = static_cast<std::uint32_t>(__cvta_generic_to_shared(from));
    // Neighbours in k, then in columns.
    return static_cast<std::uint64_t>(address >> 4 & 0x3fffu) |
           std::uint64_t{kMatrixPieceBytes >> 4} << 16 | std::uint64_t{128 >> 4} << 32;
  }
  KVLAB_HD static constexpr std::uint64_t ahead(int k) {
    return static_cast<std::uint64_t>(k / 8 * kMatrixPieceBytes >> 4);
  }
  __device__ __forceinline__ std::uint32_t word(int row, int k, int lane) const {
    return *reinterpret_cast<const std::uint32_t*>(from + k / 8 * kMatrixPieceBytes + row * 16 +
                                                   lane * 4);
  }
};

/// x[64 rows, kColumns of a warpgroup] = (adds ? x : 0) + a[64, 16]·b[16, kColumns].
template <bool kBf16, int kColumns>
__device__ __forceinline__ void multiply_group(float* x, std::uint64_t a, std::uint64_t b,
                                               int adds) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  static_assert(kColumns == 64 || kColumns == 128);
  if constexpr (kBf16 && kColumns == 64) {
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %34, 0; "
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
        "%32, %33, p, 1, 1, 0, 0;}"
        : "+f"(x[0]), "+f"(x[1]), "+f"(x[2]), "+f"(x[3]), "+f"(x[4]), "+f"(x[5]), "+f"(x[6]),
          "+f"(x[7]), "+f"(x[8]), "+f"(x[9]), "+f"(x[10]), "+f"(x[11]), "+f"(x[12]), "+f"(x[13]),
          "+f"(x[14]), "+f"(x[15]), "+f"(x[16]), "+f"(x[17]), "+f"(x[18]), "+f"(x[19]), "+f"(x[20]),
          "+f"(x[21]), "+f"(x[22]), "+f"(x[23]), "+f"(x[24]), "+f"(x[25]), "+f"(x[26]), "+f"(x[27]),
          "+f"(x[28]), "+f"(x[29]), "+f"(x[30]), "+f"(x[31])
        : "l"(a), "l"(b), "r"(adds));
  } else if constexpr (kBf16) {
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %66, 0; "
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
        "%64, %65, p, 1, 1, 0, 0;}"
        : "+f"(x[0]), "+f"(x[1]), "+f"(x[2]), "+f"(x[3]), "+f"(x[4]), "+f"(x[5]), "+f"(x[6]),
          "+f"(x[7]), "+f"(x[8]), "+f"(x[9]), "+f"(x[10]), "+f"(x[11]), "+f"(x[12]), "+f"(x[13]),
          "+f"(x[14]), "+f"(x[15]), "+f"(x[16]), "+f"(x[17]), "+f"(x[18]), "+f"(x[19]), "+f"(x[20]),
          "+f"(x[21]), "+f"(x[22]), "+f"(x[23]), "+f"(x[24]), "+f"(x[25]), "+f"(x[26]), "+f"(x[27]),
          "+f"(x[28]), "+f"(x[29]), "+f"(x[30]), "+f"(x[31]), "+f"(x[32]), "+f"(x[33]), "+f"(x[34]),
          "+f"(x[35]), "+f"(x[36]), "+f"(x[37]), "+f"(x[38]), "+f"(x[39]), "+f"(x[40]), "+f"(x[41]),
          "+f"(x[42]), "+f"(x[43]), "+f"(x[44]), "+f"(x[45]), "+f"(x[46]), "+f"(x[47]), "+f"(x[48]),
          "+f"(x[49]), "+f"(x[50]), "+f"(x[51]), "+f"(x[52]), "+f"(x[53]), "+f"(x[54]), "+f"(x[55]),
          "+f"(x[56]), "+f"(x[57]), "+f"(x[58]), "+f"(x[59]), "+f"(x[60]), "+f"(x[61]), "+f"(x[62]),
          "+f"(x[63])
        : "l"(a), "l"(b), "r"(adds));
  } else if constexpr (kColumns == 64) {
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %34, 0; "
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
        "%32, %33, p, 1, 1, 0, 0;}"
        : "+f"(x[0]), "+f"(x[1]), "+f"(x[2]), "+f"(x[3]), "+f"(x[4]), "+f"(x[5]), "+f"(x[6]),
          "+f"(x[7]), "+f"(x[8]), "+f"(x[9]), "+f"(x[10]), "+f"(x[11]), "+f"(x[12]), "+f"(x[13]),
          "+f"(x[14]), "+f"(x[15]), "+f"(x[16]), "+f"(x[17]), "+f"(x[18]), "+f"(x[19]), "+f"(x[20]),
          "+f"(x[21]), "+f"(x[22]), "+f"(x[23]), "+f"(x[24]), "+f"(x[25]), "+f"(x[26]), "+f"(x[27]),
          "+f"(x[28]), "+f"(x[29]), "+f"(x[30]), "+f"(x[31])
        : "l"(a), "l"(b), "r"(adds));
  } else {
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %66, 0; "
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
        "%64, %65, p, 1, 1, 0, 0;}"
        : "+f"(x[0]), "+f"(x[1]), "+f"(x[2]), "+f"(x[3]), "+f"(x[4]), "+f"(x[5]), "+f"(x[6]),
          "+f"(x[7]), "+f"(x[8]), "+f"(x[9]), "+f"(x[10]), "+f"(x[11]), "+f"(x[12]), "+f"(x[13]),
          "+f"(x[14]), "+f"(x[15]), "+f"(x[16]), "+f"(x[17]), "+f"(x[18]), "+f"(x[19]), "+f"(x[20]),
          "+f"(x[21]), "+f"(x[22]), "+f"(x[23]), "+f"(x[24]), "+f"(x[25]), "+f"(x[26]), "+f"(x[27]),
          "+f"(x[28]), "+f"(x[29]), "+f"(x[30]), "+f"(x[31]), "+f"(x[32]), "+f"(x[33]), "+f"(x[34]),
          "+f"(x[35]), "+f"(x[36]), "+f"(x[37]), "+f"(x[38]), "+f"(x[39]), "+f"(x[40]), "+f"(x[41]),
          "+f"(x[42]), "+f"(x[43]), "+f"(x[44]), "+f"(x[45]), "+f"(x[46]), "+f"(x[47]), "+f"(x[48]),
          "+f"(x[49]), "+f"(x[50]), "+f"(x[51]), "+f"(x[52]), "+f"(x[53]), "+f"(x[54]), "+f"(x[55]),
          "+f"(x[56]), "+f"(x[57]), "+f"(x[58]), "+f"(x[59]), "+f"(x[60]), "+f"(x[61]), "+f"(x[62]),
          "+f"(x[63])
        : "l"(a), "l"(b), "r"(adds));
  }
#endif
}

/// Waits for the products.
__device__ __forceinline__ void finish_products(Tile& tile) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  // Nothing that reads a sum moves up.
#pragma unroll
  for (int i = 0; i < 8 * kFragments; ++i) asm volatile("" : "+f"(tile.x[i])::"memory");
#endif
}

/// x[16 rows of a warp, 64 columns] += a[16, 16]·b[16, 64].
template <bool kBf16, class A, class B>
__device__ __forceinline__ void multiply_warp(float* x, const A& a, const B& b, int k, int row,
                                              int lane) {
  const std::uint32_t rows[4] = {a.word(row, k, lane), a.word(row + 8, k, lane),
                                 a.word(row, k + 8, lane), a.word(row + 8, k + 8, lane)};
#pragma unroll
  for (int n = 0; n < 8; ++n) {
    float (&sums)[4] = *reinterpret_cast<float (*)[4]>(x + 4 * n);
    mma_16<kBf16>(sums, rows[0], rows[1], rows[2], rows[3], b.word(8 * n, k, lane),
                  b.word(8 * n, k + 8, lane));
  }
}

/// tile = tokens · matrix, or by channels its transpose. kGroup: by the products of four warps at
/// once, kWide: of all columns at once, which keeps more registers together; `meanwhile()` is what
/// a warp does beside them.
template <bool kBf16, int kParts, bool kChannels, bool kGroup, bool kWide, class Meanwhile>
__device__ __forceinline__ void rotate_tile(Tile& tile, const unsigned char* stage,
                                            const unsigned char* matrix, int warp, int lane,
                                            const Meanwhile& meanwhile) {
  const StageOperand tokens{stage};
  if constexpr (kGroup) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    const std::uint64_t of_tokens = tokens.descriptor();
    const std::uint64_t of_matrix = MatrixOperand{matrix}.descriptor();
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
    for (int k = 0; k < kFastDim; k += 16) {
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        const std::uint64_t a = of_tokens + StageOperand::ahead(k);
        const std::uint64_t b = of_matrix + MatrixOperand::ahead(k) + (part * kMatrixBytes >> 4);
        const std::uint64_t rest = b + (64 * 16 >> 4);
        if constexpr (kWide && !kChannels) {
          multiply_group<kBf16, 128>(tile.x, a, b, k + part > 0);
        } else {
          multiply_group<kBf16, 64>(tile.x, kChannels ? b : a, kChannels ? a : b, k + part > 0);
          multiply_group<kBf16, 64>(tile.x + 32, kChannels ? rest : a, kChannels ? a : rest,
                                    k + part > 0);
        }
      }
    }
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    meanwhile();
    finish_products(tile);
#endif
  } else {
    meanwhile();
#pragma unroll
    for (int i = 0; i < 8 * kFragments; ++i) tile.x[i] = 0.0f;
#pragma unroll 1
    for (int part = 0; part < kParts; ++part) {
#pragma unroll 1
      for (int k = 0; k < kFastDim; k += 16) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const MatrixOperand columns{matrix + part * kMatrixBytes + half * 64 * 16};
          float* x = tile.x + 32 * half;
          if constexpr (kChannels) {
            multiply_warp<kBf16>(x, columns, tokens, k, 16 * warp, lane);
          } else {
            multiply_warp<kBf16>(x, tokens, columns, k, 16 * warp, lane);
          }
        }
      }
    }
  }
}

}  // namespace kvlab::kernels::cuda
