#include "model/device.h"

#include <ATen/Context.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <filesystem>

namespace kvlab::model {
namespace {

/// Loads libtorch_cuda.so from where libtorch_cpu.so was found: why there is no GPU, empty where
/// there is one.
std::string load_cuda() {
  Dl_info cpu{};
  if (dladdr(reinterpret_cast<void*>(&at::globalContext), &cpu) == 0) {
    return "libtorch's folder is not known";
  }
  const auto library = std::filesystem::path(cpu.dli_fname).parent_path() / "libtorch_cuda.so";
  std::error_code ignored;
  if (!std::filesystem::exists(library, ignored)) return "this PyTorch has no CUDA";
  if (dlopen(library.c_str(), RTLD_NOW | RTLD_GLOBAL) == nullptr) return dlerror();
  if (!at::hasCUDA()) return "PyTorch finds no NVIDIA GPU";
  // Products of 16-bit matrices are summed in float32 to the end, as on the CPU.
  at::globalContext().setAllowFP16ReductionCuBLAS(false);
  at::globalContext().setAllowBF16ReductionCuBLAS(false);
  return "";
}

}  // namespace

std::optional<std::string> missing_device(at::Device device) {
  if (!device.is_cuda()) return std::nullopt;
  static const std::string missing = load_cuda();
  if (missing.empty()) return std::nullopt;
  return fmt::format("device cuda is not available here: {}", missing);
}

}  // namespace kvlab::model
