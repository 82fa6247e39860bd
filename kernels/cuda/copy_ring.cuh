#pragma once

#include <cstdint>

/// Copies from global to shared memory that run beside the arithmetic: a private ring of a few records a warp, so
/// that the main loop needs no barrier of the block.
namespace kvlab::kernels::cuda {

__device__ __forceinline__ std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

inline constexpr int kMostStages = 4;

/// kBytes: of a record, a multiple of 128. Records arrive in the order in which they are asked for.
template <int kBytes>
class CopyRing {
 public:
  /// memory: stages · kBytes of this warp's own, 128-byte aligned. barriers: `stages` of its own, 2 … kMostStages.
  __device__ __forceinline__ CopyRing(unsigned char* memory, std::uint64_t* barriers, int stages, bool bulk, int lane)
      : memory_(memory), barriers_(shared_address(barriers)), stages_(stages), bulk_(bulk), lane_(lane) {
#if __CUDA_ARCH__ >= 900
    if (bulk_ && lane_ == 0) {
      for (int stage = 0; stage < stages_; ++stage) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barriers_ + 8 * stage) : "memory");
      }
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
      asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
#else
    bulk_ = false;
#endif
    __syncwarp();
  }

  /// Asks for a record (null: none). With `stages` records asked for and not released there is no room.
  __device__ __forceinline__ void ask(const std::uint8_t* from) {
    const int stage = filling_;
    filling_ = stage + 1 == stages_ ? 0 : stage + 1;
#if __CUDA_ARCH__ >= 900
    if (bulk_) {
      if (lane_ == 0 && from) {
        const std::uint32_t barrier = barriers_ + 8 * stage;
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(kBytes) : "memory");
        asm volatile(
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                shared_address(memory_ + stage * kBytes)),
            "l"(from), "r"(kBytes), "r"(barrier)
            : "memory");
      }
      return;
    }
#endif
    if (from) {
      const std::uint32_t to = shared_address(memory_ + stage * kBytes);
      for (int at = lane_ * 16; at < kBytes; at += 32 * 16) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + at), "l"(from + at) : "memory");
      }
    }
    asm volatile("cp.async.commit_group;" ::: "memory");  // also an empty one: wait counts groups
  }

  /// The oldest record that was asked for and not released, once it is there.
  __device__ __forceinline__ const unsigned char* wait() const {
#if __CUDA_ARCH__ >= 900
    if (bulk_) {
      asm volatile(
          "{\n"
          ".reg .pred done;\n"
          "WAIT:\n"
          "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
          "@!done bra WAIT;\n"
          "}" ::"r"(barriers_ + 8 * reading_),
          "r"(parity_)
          : "memory");
      return memory_ + reading_ * kBytes;
    }
#endif
    // Groups end in order; what may still be on its way is all but the oldest.
    if (stages_ == 2) {
      asm volatile("cp.async.wait_group 1;" ::: "memory");
    } else if (stages_ == 3) {
      asm volatile("cp.async.wait_group 2;" ::: "memory");
    } else {
      asm volatile("cp.async.wait_group 3;" ::: "memory");
    }
    __syncwarp();
    return memory_ + reading_ * kBytes;
  }

  /// The record that wait gave has been read by this lane.
  __device__ __forceinline__ void release() {
    if (++reading_ == stages_) {
      reading_ = 0;
      parity_ ^= 1;
    }
    __syncwarp();
  }

 private:
  unsigned char* memory_;
  std::uint32_t barriers_;
  int stages_;
  bool bulk_;
  int lane_;
  int filling_ = 0, reading_ = 0;
  std::uint32_t parity_ = 0;
};

}  // namespace kvlab::kernels::cuda
