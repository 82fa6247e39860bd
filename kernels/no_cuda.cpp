#include <stdexcept>
#include <string>

#include "kvlab/kernels/cuda.h"

/// cuda.h in a build without a CUDA compiler: every call says so.
namespace kvlab::kernels::cuda {
namespace {

constexpr const char* kReason = "this build has no CUDA parts (nvcc was not found)";

[[noreturn]] void refuse() { throw std::runtime_error(kReason); }

}  // namespace

bool available(std::string* why) {
  if (why) *why = kReason;
  return false;
}

void write_windows(const CacheView&, const TokenSource&, int, int, Stream) { refuse(); }

void encode(const CacheView&, const EncodeSpec&, const TokenSource&, int, int, Stream) { refuse(); }

void flush(const Layer&, const Layer*, int, int, int, Stream) { refuse(); }

void advance(std::int32_t*, int, int, Stream) { refuse(); }

Device device() { refuse(); }

AttendPlan plan_attend(const CacheView&, const AttendArgs&, int, const Device&) { refuse(); }

void attend(const AttendPlan&, const CacheView&, const AttendArgs&, void*, Stream) { refuse(); }

void dequantize(const CacheView&, const EncodeSpec*, void*, void*, Type, std::int64_t, Stream) {
  refuse();
}

}  // namespace kvlab::kernels::cuda
