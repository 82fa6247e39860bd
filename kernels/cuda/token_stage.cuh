#pragma once

#include "fast_tile.cuh"

/// 64 tokens as they come, in shared memory: where a warpgroup's next tokens arrive while it
/// quantizes the last, and an operand of its products.
///
/// [halves of the channels: 2][tokens: 64] rows of 128 bytes, in each of which the eight pieces of
/// 16 bytes stand at their number xor the token's (wgmma's swizzle of 128 bytes): eight lanes that
/// read a piece of eight tokens, or write eight pieces of a token, meet no bank twice.
namespace kvlab::kernels::cuda {

inline constexpr int kStageTokens = 64;
inline constexpr int kStageHalfBytes = kStageTokens * 128;
inline constexpr int kStageBytes = 2 * kStageHalfBytes;

/// Byte of channels 8·piece … 8·piece + 7 of a token of the stage.
KVLAB_HD constexpr int stage_byte(int token, int piece) {
  return piece / 8 * kStageHalfBytes + token * 128 + (piece % 8 ^ token % 8) * 16;
}

/// The two rows of a lane.
struct Rows {
  const std::uint16_t* row[2];
};

/// Asks for the warp's 16 tokens wherever they are; `first`: their place in the stage.
__device__ __forceinline__ void ask_rows(unsigned char* stage, const Rows& rows, int first,
                                         int lane) {
  const int t = lane % 4;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
#pragma unroll
    for (int c = 0; c < kFastDim / 32; ++c) {
      const auto to = static_cast<std::uint32_t>(
          __cvta_generic_to_shared(stage + stage_byte(first + lane / 4 + 8 * r, 4 * c + t)));
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to),
                   "l"(rows.row[r] + 32 * c + 8 * t)
                   : "memory");
    }
  }
}

/// Waits for what this thread asked for; a barrier of all that read the stage is to follow.
__device__ __forceinline__ void await_rows() {
  asm volatile("cp.async.wait_all;" ::: "memory");
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

/// A tensor of tokens as the copy engine sees it, [batch, heads, halves of channels, tokens, half a
/// head] (compute capability 9.0): 64 tokens that all exist are one request of one thread, and no
/// other spends an instruction on them.
struct alignas(64) TokenMap {
  unsigned char bytes[128];
};

/// `arrived`: an mbarrier that one thread arrives at.
__device__ __forceinline__ void ask_tokens(unsigned char* stage, std::uint64_t* arrived,
                                           const TokenMap& map, int token, int head, int sequence) {
#if __CUDA_ARCH__ >= 900
  const auto barrier = static_cast<std::uint32_t>(__cvta_generic_to_shared(arrived));
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n"
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes [%2], [%3, {%4, "
      "%5, %4, %6, %7}], [%0];" ::"r"(barrier),
      "n"(kStageBytes), "r"(static_cast<std::uint32_t>(__cvta_generic_to_shared(stage))), "l"(&map),
      "r"(0), "r"(token), "r"(head), "r"(sequence)
      : "memory");
#endif
}

__device__ __forceinline__ void open_barrier(std::uint64_t* arrived) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "mbarrier.init.shared::cta.b64 [%0], 1;\n"
      "fence.mbarrier_init.release.cluster;" ::"r"(
          static_cast<std::uint32_t>(__cvta_generic_to_shared(arrived)))
      : "memory");
#endif
}

/// Waits for the request number `turn` (its lowest bit).
__device__ __forceinline__ void await_tokens(std::uint64_t* arrived, unsigned turn) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "WAIT:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra WAIT;\n"
      "}" ::"r"(static_cast<std::uint32_t>(__cvta_generic_to_shared(arrived))),
      "r"(turn & 1u)
      : "memory");
#endif
}

/// The warp's tokens untouched, by tokens in the order of keys or of values.
template <bool kBf16>
__device__ __forceinline__ void take_tokens(Tile& tile, const unsigned char* stage, bool key,
                                            int first, int lane) {
  const int t = lane % 4;
  const int token = first + lane / 4;
  if (key) {
#pragma unroll
    for (int i = 0; i < kFragments; ++i) {
      const int c = i / 2;
      const int r = i % 2;
      const auto word =
          *reinterpret_cast<const uint4*>(stage + stage_byte(token + 8 * r, 4 * c + t));
      const std::uint32_t pairs[4] = {word.x, word.y, word.z, word.w};
#pragma unroll
      for (int p = 0; p < 4; ++p) {
        const float2 pair = floats_of<kBf16>(pairs[p]);
        tile.at(2 * c + p / 2, p % 2, r, 0) = pair.x;
        tile.at(2 * c + p / 2, p % 2, r, 1) = pair.y;
      }
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < 4 * kFragments; ++i) {
    const int f = i / 4;
    const int j = i / 2 % 2;
    const int r = i % 2;
    const float2 pair = floats_of<kBf16>(*reinterpret_cast<const std::uint32_t*>(
        stage + stage_byte(token + 8 * r, 2 * f + j) + 4 * t));
    tile.at(f, j, r, 0) = pair.x;
    tile.at(f, j, r, 1) = pair.y;
  }
}

/// All tokens untouched, by channels, of warp `warp` of the four.
template <bool kBf16>
__device__ __forceinline__ void take_channels(Tile& tile, const unsigned char* stage, int warp,
                                              int lane) {
  const int g = lane / 4;
#pragma unroll
  for (int j = 0; j < 8; ++j) {
#pragma unroll
    for (int l = 0; l < 2; ++l) {
      const auto words = *reinterpret_cast<const uint2*>(
          stage + stage_byte(8 * j + 2 * (lane % 4) + l, 4 * (g / 2) + warp) + g % 2 * 8);
      const float2 low = floats_of<kBf16>(words.x);
      const float2 high = floats_of<kBf16>(words.y);
      tile.of_channel(0, j, l) = low.x;
      tile.of_channel(1, j, l) = low.y;
      tile.of_channel(2, j, l) = high.x;
      tile.of_channel(3, j, l) = high.y;
    }
  }
}

/// Sums over all channels of the squares of the lane's tokens g and g + 8, exact products summed in
/// float32: the diagonal of tokens · tokensᵀ.
template <bool kBf16>
__device__ __forceinline__ void square_sums_by_product(const unsigned char* stage, int first,
                                                       int lane, float (&sums)[2]) {
  // Rows 0 to 7, then 8 to 15 of one piece, then of the next: the operand [16 tokens, 16 channels].
  const auto from =
      static_cast<std::uint32_t>(__cvta_generic_to_shared(stage + (first + lane % 16) * 128));
  const std::uint32_t own = (lane / 16 ^ lane % 8) * 16;
  float upper[4] = {};
  float lower[4] = {};
#pragma unroll
  for (int f = 0; f < kFragments; ++f) {
    std::uint32_t a[4];
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
                 : "r"(from + f / 4 * kStageHalfBytes + (own ^ f % 4 * 32))
                 : "memory");
    // Tokens in rows and the same in columns lie in the same registers.
    mma_16<kBf16>(upper, a[0], a[1], a[2], a[3], a[0], a[2]);
    mma_16<kBf16>(lower, a[0], a[1], a[2], a[3], a[1], a[3]);
  }
  const int g = lane / 4;
  const int holder = lane - lane % 4 + g / 2;
  sums[0] = __shfl_sync(kAllLanes, g % 2 ? upper[1] : upper[0], holder);
  sums[1] = __shfl_sync(kAllLanes, g % 2 ? lower[3] : lower[2], holder);
}

/// The same in float64, or a 16-bit norm would now and then round the other way: where codes are of
/// untouched numbers and exact.
template <bool kBf16>
__device__ __forceinline__ void square_sums_exactly(const unsigned char* stage, int first, int lane,
                                                    double (&sums)[2]) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    double sum = 0.0;
#pragma unroll 1
    for (int c = 0; c < kFastDim / 32; ++c) {
      const auto word = *reinterpret_cast<const uint4*>(
          stage + stage_byte(first + lane / 4 + 8 * r, 4 * c + lane % 4));
      const std::uint32_t pairs[4] = {word.x, word.y, word.z, word.w};
#pragma unroll
      for (int p = 0; p < 4; ++p) {
        const float2 pair = floats_of<kBf16>(pairs[p]);
        sum += static_cast<double>(pair.x) * pair.x;
        sum += static_cast<double>(pair.y) * pair.y;
      }
    }
    sum += __shfl_xor_sync(kAllLanes, sum, 1);
    sums[r] = sum + __shfl_xor_sync(kAllLanes, sum, 2);
  }
}

}  // namespace kvlab::kernels::cuda
