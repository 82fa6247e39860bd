// What cuda.h, cuda_device.h and decoder.h are in a build without a CUDA toolkit: available() says
// so, and whoever calls on regardless is told in a sentence.
#include <stdexcept>

#include "kvlab/kernels/cuda_device.h"
#include "kvlab/kernels/decoder.h"

namespace kvlab::kernels::cuda {
namespace {

constexpr const char* kAbsent =
    "this build has no CUDA kernels: no nvcc was found when it was configured";

[[noreturn]] void absent() { throw std::runtime_error(kAbsent); }

}  // namespace

bool available(std::string* why) {
  if (why != nullptr) *why = kAbsent;
  return false;
}

void write_windows(const CacheView&, const TokenSource&, int, int, Stream) { absent(); }
void encode(const CacheView&, const EncodeSpec&, const TokenSource&, int, int, Stream) { absent(); }
void flush(const Layer&, const Layer*, int, int, int, Stream) { absent(); }
void advance(std::int32_t*, int, int, Stream) { absent(); }
Device device() { absent(); }
AttendPlan plan_attend(const CacheView&, const AttendArgs&, int, const Device&, Lengths) {
  absent();
}
void schedule(const AttendPlan&, const CacheView&, void*, Stream) { absent(); }
void attend(const AttendPlan&, const CacheView&, const AttendArgs&, void*, Stream) { absent(); }
void dequantize(const CacheView&, const EncodeSpec*, void*, void*, Type, std::int64_t, Stream) {
  absent();
}

void rms_norm(const void*, const void*, void*, int, int, float, Stream) { absent(); }
void norm_and_turn(const StepHeads&, float, Stream) { absent(); }
void gate(const void*, void*, int, int, Stream) { absent(); }

std::string device_name() { absent(); }
std::shared_ptr<void> allocate(std::int64_t) { absent(); }
void copy_in(void*, const void*, std::int64_t) { absent(); }
void copy_out(void*, const void*, std::int64_t) { absent(); }
void synchronize() { absent(); }
void copy_within(void*, const void*, std::int64_t, Stream) { absent(); }
std::vector<double> time_graph(const std::function<void(int, Stream)>&, int, int) { absent(); }

}  // namespace kvlab::kernels::cuda
