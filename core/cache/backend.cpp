#include "cache/backend.h"

#include <fmt/format.h>

#include <stdexcept>

#include "kvlab/kernels/cpu.h"
#include "kvlab/kernels/cuda_device.h"

namespace kvlab::cache {

std::optional<std::string> missing_backend(const std::string& backend) {
  std::string why;
  if (backend == "cuda" && !kernels::cuda::available(&why)) {
    return fmt::format("backend cuda is not available here: {}", why);
  }
  if (backend == "cpu") {
    try {
      kernels::cpu::chosen_isa();
    } catch (const std::invalid_argument& error) {
      return fmt::format("backend cpu is not available here: {}", error.what());
    }
  }
  return std::nullopt;
}

std::string cpu_code() {
  if (missing_backend("cpu")) return "no";
  return kernels::cpu::chosen_isa() == kernels::cpu::Isa::avx2 ? "AVX2" : "portable";
}

std::string gpu_name() {
  return kernels::cuda::available() ? kernels::cuda::device_name() : "none";
}

}  // namespace kvlab::cache
