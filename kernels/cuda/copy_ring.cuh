#pragma once

#include <cstdint>

#include "attend_table.h"

/// Copies from global to shared memory that run beside the arithmetic: a private ring of two
/// records a warp, so that the main loop needs no barrier of the block. (Three and four records
/// were no faster.)
namespace kvlab::kernels::cuda {

__device__ __forceinline__ std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

/// kBytes: of a record, a multiple of 128. Records arrive in the order in which they are asked for.
template <int kBytes>
class CopyRing {
 public:
  /// memory: kStages · kBytes of this warp's own, 128-byte aligned. barriers: kStages of its own.
  __device__ __forceinline__ CopyRing(unsigned char* memory, std::uint64_t* barriers, bool bulk,
                                      int lane)
      : memory_(shared_address(memory)),
        barriers_(shared_address(barriers)),
        bulk_(bulk),
        lane_(lane) {
#if !(__CUDA_ARCH__ >= 900)
    bulk_ = false;
#endif
    init();
  }

  /// Counts from 0 again. All that was asked for has been read, and the block has met at a barrier;
  /// copies that follow come after what its threads wrote to the memory.
  __device__ __forceinline__ void restart() const {
#if __CUDA_ARCH__ >= 900
    if (bulk_ && lane_ == 0) {
      asm volatile(
          "mbarrier.inval.shared::cta.b64 [%0];\n"
          "mbarrier.inval.shared::cta.b64 [%1];\n" ::"r"(barriers_),
          "r"(barriers_ + 8)
          : "memory");
    }
#endif
    init();
  }

  /// Asks for record number `turn` (null: none). Number turn − kStages must have been read by all
  /// lanes.
  __device__ __forceinline__ void ask(int turn, const std::uint8_t* from) const {
    const std::uint32_t to = memory_ + turn % kStages * kBytes;
#if __CUDA_ARCH__ >= 900
    if (bulk_) {
      if (lane_ == 0 && from) {
        const std::uint32_t barrier = barriers_ + turn % kStages * 8;
        asm volatile(
            "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%3], %2;\n"
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, "
            "[%3];" ::"r"(to),
            "l"(from), "n"(kBytes), "r"(barrier)
            : "memory");
      }
      return;
    }
#endif
    if (from) {
      for (int at = lane_ * 16; at < kBytes; at += 32 * 16) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + at), "l"(from + at)
                     : "memory");
      }
    }
    asm volatile("cp.async.commit_group;" ::: "memory");  // also an empty one: wait counts groups
  }

  /// Waits for record number `turn`, counted from 0; it is at memory + turn % kStages · kBytes.
  __device__ __forceinline__ void wait(int turn) const {
#if __CUDA_ARCH__ >= 900
    if (bulk_) {
      asm volatile(
          "{\n"
          ".reg .pred done;\n"
          "WAIT:\n"
          "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
          "@!done bra WAIT;\n"
          "}" ::"r"(barriers_ + turn % kStages * 8),
          "r"(turn / kStages & 1)
          : "memory");
      return;
    }
#endif
    asm volatile("cp.async.wait_group 1;" ::: "memory");
    __syncwarp();
  }

 private:
  __device__ __forceinline__ void init() const {
#if __CUDA_ARCH__ >= 900
    if (bulk_ && lane_ == 0) {
      asm volatile(
          "mbarrier.init.shared::cta.b64 [%0], 1;\n"
          "mbarrier.init.shared::cta.b64 [%1], 1;\n"
          "fence.mbarrier_init.release.cluster;\n"
          "fence.proxy.async.shared::cta;" ::"r"(barriers_),
          "r"(barriers_ + 8)
          : "memory");
    }
#endif
    __syncwarp();
  }

  std::uint32_t memory_;
  std::uint32_t barriers_;
  bool bulk_;
  int lane_;
};

}  // namespace kvlab::kernels::cuda
