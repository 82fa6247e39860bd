#include "clocks.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include "cuda/check.h"

namespace kvlab::bench {
namespace {

// The little of nvml.h that is used here; the toolkit's stub is not linked, so that the program
// starts without a driver.
using Nvml = void*;
constexpr int kSuccess = 0;
constexpr int kSmClock = 1;  // NVML_CLOCK_SM

struct Reason {
  unsigned long long bit;
  const char* text;
};
constexpr Reason kReasons[] = {{0x4, "the software power cap"},
                               {0x8, "a hardware slowdown"},
                               {0x20, "the software thermal limit"},
                               {0x40, "the hardware thermal limit"},
                               {0x80, "the power brake"}};

class Library {
 public:
  Library() {
    void* library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) return;
    const auto init = reinterpret_cast<int (*)()>(dlsym(library, "nvmlInit_v2"));
    const auto find = reinterpret_cast<int (*)(const char*, Nvml*)>(
        dlsym(library, "nvmlDeviceGetHandleByPciBusId_v2"));
    clock_ = reinterpret_cast<Clock>(dlsym(library, "nvmlDeviceGetClockInfo"));
    reasons_ =
        reinterpret_cast<Reasons>(dlsym(library, "nvmlDeviceGetCurrentClocksThrottleReasons"));
    if (!init || !find || !clock_ || init() != kSuccess) return;
    // Numbers of the driver are not those of this process: the bus tells them apart.
    int id = 0;
    char bus[32] = {};
    KVLAB_CUDA(cudaGetDevice(&id));
    KVLAB_CUDA(cudaDeviceGetPCIBusId(bus, sizeof bus, id));
    if (find(bus, &device_) != kSuccess) device_ = nullptr;
  }

  std::optional<Clocks> read() const {
    unsigned mhz = 0;
    if (!device_ || clock_(device_, kSmClock, &mhz) != kSuccess) return std::nullopt;
    Clocks clocks;
    clocks.sm_mhz = static_cast<int>(mhz);
    unsigned long long bits = 0;
    if (reasons_ && reasons_(device_, &bits) == kSuccess) {
      for (const Reason& reason : kReasons) {
        if (!(bits & reason.bit)) continue;
        clocks.throttled += (clocks.throttled.empty() ? "" : ", ") + std::string(reason.text);
      }
    }
    return clocks;
  }

 private:
  using Clock = int (*)(Nvml, int, unsigned*);
  using Reasons = int (*)(Nvml, unsigned long long*);
  Clock clock_ = nullptr;
  Reasons reasons_ = nullptr;
  Nvml device_ = nullptr;
};

}  // namespace

std::optional<Clocks> clocks() {
  static const Library library;
  return library.read();
}

}  // namespace kvlab::bench
