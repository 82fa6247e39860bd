#include "torch_attention.h"

#include <dlfcn.h>

#include <filesystem>
#include <stdexcept>

#include "torch_cuda/torch_cuda.h"

namespace kvlab::bench {
namespace {

struct Module {
  decltype(&kvlab_torch_time) time = nullptr;
  decltype(&kvlab_torch_error) error = nullptr;
  std::string missing;
};

Module load() {
  Module module;
  const auto path =
      std::filesystem::read_symlink("/proc/self/exe").parent_path() / "libkvlab_torch_cuda.so";
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    module.missing = dlerror();
    return module;
  }
  module.time = reinterpret_cast<decltype(module.time)>(dlsym(library, "kvlab_torch_time"));
  module.error = reinterpret_cast<decltype(module.error)>(dlsym(library, "kvlab_torch_error"));
  if (!module.time || !module.error) module.missing = path.string() + " is of another version";
  return module;
}

const Module& module() {
  static const Module loaded = load();
  return loaded;
}

}  // namespace

bool has_torch_attention(std::string* why) {
  *why = module().missing;
  return why->empty();
}

std::vector<double> time_torch_attention(const std::string& kind, const AttentionShape& shape,
                                         int copies, int launches, int samples) {
  std::vector<double> nanoseconds(static_cast<size_t>(samples));
  const int sizes[] = {shape.batch, shape.tokens, shape.q_heads, shape.kv_heads, shape.dim};
  if (module().time(kind.c_str(), sizes, copies, launches, samples, nanoseconds.data()) != 0) {
    throw std::runtime_error(module().error());
  }
  return nanoseconds;
}

}  // namespace kvlab::bench
