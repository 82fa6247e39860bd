#include "speed/torch_module.h"

#include <dlfcn.h>

#include <filesystem>

namespace kvlab::speed {
namespace {

struct Module {
  void* library = nullptr;
  std::string missing;
};

Module load() {
  const auto path =
      std::filesystem::read_symlink("/proc/self/exe").parent_path() / "libkvlab_torch_cuda.so";
  Module module;
  module.library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (module.library == nullptr) module.missing = dlerror();
  return module;
}

const Module& module() {
  static const Module loaded = load();
  return loaded;
}

}  // namespace

const std::string& missing_torch_cuda() { return module().missing; }

void* torch_cuda_symbol(const char* name) {
  return module().library == nullptr ? nullptr : dlsym(module().library, name);
}

}  // namespace kvlab::speed
