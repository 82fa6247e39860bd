#pragma once

#include "fast_tile.cuh"

/// Rotating a tile: its product with a matrix that a thread block keeps in shared memory, by the
/// products of a warpgroup (four warps, 64 tokens; compute capability 9.0a) or by each warp's own.
namespace kvlab::kernels::cuda {

enum class Product : unsigned char {
  none,   // tiles stay as they are
  signs,  // a Hadamard rotation up to √d: exact in 16 bits
  dense,
};

/// A matrix as a sum of 16-bit ones: a dense rotation to the precision of float32, by three of bf16
/// or two of fp16, which has more bits but a smaller range and is scaled up.
template <bool kBf16, Product kProduct>
struct Parts {
  static constexpr bool dense = kProduct == Product::dense;
  static constexpr int count = kProduct == Product::none ? 0 : !dense ? 1 : kBf16 ? 3 : 2;
  static constexpr float scale = dense && !kBf16 ? 256.0f : 1.0f;
};

/// Shared memory as wgmma wants it without swizzling: [half of 16 k: 16][columns / 8: 16] pieces of
/// 8 columns × 8 k, a column's 16 bytes side by side. Bytes between halves of k, and between
/// neighbours in columns:
inline constexpr int kHalfBytes = 16 * 128;
inline constexpr int kColumnsBytes = 128;
inline constexpr int kMatrixBytes = kFastDim * kFastDim * 2;

/// Channel of a column of the product: of keys or of values in a tile's order.
KVLAB_HD constexpr unsigned channel_of_column(bool key, unsigned n) {
  const unsigned f = n / 16;
  return key ? 32 * (f / 2) + 8 * (n % 8 / 2) + 4 * (f % 2) + 2 * (n / 8 % 2) + n % 2 : n;
}

/// Channel of a row of the product: tokens are loaded as keys are, 16 bytes a lane.
KVLAB_HD constexpr unsigned channel_of_row(unsigned k) {
  const unsigned f = k / 16;
  return 32 * (f / 2) + 8 * (k % 8 / 2) + 4 * (f % 2) + 2 * (k / 8 % 2) + k % 2;
}

/// Writes a side's matrix to shared memory, by all threads. `rotation`: of a dense one, [d, d].
template <bool kBf16, Product kProduct>
__device__ void fill_matrix(const float* rotation, bool key, std::uint32_t* shared) {
  using P = Parts<kBf16, kProduct>;
  constexpr Type type = kBf16 ? Type::bf16 : Type::f16;
  constexpr std::uint32_t one = kBf16 ? 0x3f80u : 0x3c00u;
#pragma unroll(kProduct == Product::dense ? 8 : 1)
  for (unsigned word = threadIdx.x; word < kMatrixBytes / 4; word += blockDim.x) {
    const unsigned k = word / (kHalfBytes / 4) * 8 + word % 4 * 2;  // and k + 1
    const unsigned n = word % (kHalfBytes / 4) / 4;
    const unsigned column = channel_of_column(key, n);
    const unsigned row = channel_of_row(k);
    if constexpr (kProduct == Product::signs) {
      const auto sign = [&](unsigned r) { return one | (__popc(r & column) % 2 ? 0x8000u : 0u); };
      shared[word] = sign(row) | sign(row + 1) << 16;
    } else if constexpr (kProduct == Product::dense) {
      float rest[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) rest[i] = rotation[(row + i) * kFastDim + column] * P::scale;
#pragma unroll
      for (int part = 0; part < P::count; ++part) {
        std::uint32_t pair = 0;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const std::uint16_t bits = kBf16 ? to_bf16(rest[i]) : to_f16(rest[i]);
          rest[i] = add(rest[i], -load_number(&bits, 0, type));
          pair |= std::uint32_t{bits} << (16 * i);
        }
        shared[part * (kMatrixBytes / 4) + word] = pair;
      }
    }
  }
}

/// Descriptor of the 16 rows of a matrix that begin at `address`, a shared-memory address.
__device__ __forceinline__ std::uint64_t matrix_descriptor(std::uint32_t address) {
  return static_cast<std::uint64_t>(address >> 4 & 0x3fffu) | std::uint64_t{kHalfBytes >> 4} << 16 |
         std::uint64_t{kColumnsBytes >> 4} << 32;
}

/// tile[64 tokens, 128] = (adds ? tile : 0) + a[64, 16]·matrix[16, 128]. Between begin_products and
/// finish_products.
template <bool kBf16>
__device__ __forceinline__ void multiply_matrix(Tile& tile, const uint4& a, std::uint64_t matrix,
                                                int adds) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  float* x = tile.x[0][0];
  if constexpr (kBf16) {
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %69, 0; "
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
        "{%64, %65, %66, %67}, %68, p, 1, 1, 0;}"
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
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(matrix), "r"(adds));
  } else {
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %69, 0; "
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
        "{%64, %65, %66, %67}, %68, p, 1, 1, 0;}"
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
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(matrix), "r"(adds));
  }
#endif
}

__device__ __forceinline__ void begin_products() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}

__device__ __forceinline__ void finish_products() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#endif
}

/// Makes what threads wrote to shared memory visible to the products; before a barrier.
__device__ __forceinline__ void publish_matrix() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

/// The lane's two tokens as they come: 16 bytes of every 32 channels.
struct Loaded {
  uint4 word[2][kFragments / 2];
};

__device__ __forceinline__ void load_rows(Loaded& loaded, const Rows& rows, int lane) {
#pragma unroll
  for (int r = 0; r < 2; ++r)
#pragma unroll
    for (int c = 0; c < kFragments / 2; ++c)
      loaded.word[r][c] =
          __ldg(reinterpret_cast<const uint4*>(rows.row[r] + 32 * c + lane % 4 * 8));
}

/// Operand of 16 k: [row 0, row 1, row 0, row 1 of the upper k]. `zero` is 0, but the compiler must
/// not know: it would put these moves right behind the loads, which they then wait for, and not
/// here, a tile later.
__device__ __forceinline__ uint4 operand_of(const Loaded& loaded, int f, std::uint32_t zero) {
  const uint4& a = loaded.word[0][f / 2];
  const uint4& b = loaded.word[1][f / 2];
  return f % 2 ? make_uint4(a.z ^ zero, b.z ^ zero, a.w ^ zero, b.w ^ zero)
               : make_uint4(a.x ^ zero, b.x ^ zero, a.y ^ zero, b.y ^ zero);
}

/// tile = tokens · matrix. `warpgroup`: by the products of four warps at once.
template <bool kBf16, int kParts>
__device__ __forceinline__ void rotate_tile(Tile& tile, const Loaded& loaded,
                                            const std::uint32_t* matrix,
                                            const volatile std::uint32_t& always_zero,
                                            bool warpgroup, int lane) {
  const std::uint32_t zero = always_zero;
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  if (warpgroup) {
    const std::uint64_t whole =
        matrix_descriptor(static_cast<std::uint32_t>(__cvta_generic_to_shared(matrix)));
    // All operands come before the fence: the products read registers at their own time.
    uint4 operands[kFragments];
#pragma unroll
    for (int f = 0; f < kFragments; ++f) operands[f] = operand_of(loaded, f, zero);
    begin_products();
#pragma unroll
    for (int f = 0; f < kFragments; ++f) {
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        const int rows = part * kMatrixBytes + f * 2 * kHalfBytes;
        multiply_matrix<kBf16>(tile, operands[f], whole + (rows >> 4), f + part > 0);
      }
    }
    finish_products();
    return;
  }
#endif
#pragma unroll
  for (int i = 0; i < 8 * kFragments; ++i) tile.x[i / 8][i / 4 % 2][i % 4] = 0.0f;
#pragma unroll 1
  for (int part = 0; part < kParts; ++part) {
#pragma unroll
    for (int f = 0; f < kFragments; ++f) {
      const std::uint32_t* rows = matrix + (part * kMatrixBytes + f * 2 * kHalfBytes) / 4 + lane;
      const uint4 a = operand_of(loaded, f, zero);
#pragma unroll
      for (int n = 0; n < 2 * kFragments; ++n) {
        mma_16<kBf16>(tile.x[n / 2][n % 2], a.x, a.y, a.z, a.w, rows[n * kColumnsBytes / 4],
                      rows[(kHalfBytes + n * kColumnsBytes) / 4]);
      }
    }
  }
}

}  // namespace kvlab::kernels::cuda
