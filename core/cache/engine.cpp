#include "cache/engine.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <new>

#include "base/error.h"
#include "cache/backend.h"
#include "kvlab/kernels/cpu.h"

namespace kvlab::cache {
namespace {

using kernels::AttendArgs;
using kernels::CacheView;
using kernels::EncodeSpec;
using kernels::TokenSource;
using kernels::cuda::Stream;

/// What kernels/ refuses is a combination that a backend lacks.
template <typename Function>
auto refusing(Function&& function) {
  try {
    return function();
  } catch (const std::invalid_argument& error) {
    throw Unsupported(error.what());
  }
}

class CpuEngine final : public Engine {
 public:
  Memory allocate(int64_t bytes) const override {
    constexpr size_t kAlign = 128;
    const size_t size = (static_cast<size_t>(bytes) + kAlign) / kAlign * kAlign;
    void* memory = std::aligned_alloc(kAlign, size);
    if (memory == nullptr) throw std::bad_alloc();
    std::memset(memory, 0, size);
    return {memory, [](void* held) { std::free(held); }};
  }

  Memory place(const at::Tensor& contiguous) const override {
    // The deleter's copy keeps the tensor's storage alive.
    return {contiguous.data_ptr(), [contiguous](void*) {}};
  }

  void write(void* to, const void* host, int64_t bytes) const override {
    if (bytes > 0)
      std::memcpy(to, host, static_cast<size_t>(bytes));  // of nothing there may be no place
  }
  void read(void* host, const void* from, int64_t bytes) const override {
    if (bytes > 0) std::memcpy(host, from, static_cast<size_t>(bytes));
  }

  void write_windows(const CacheView& cache, const TokenSource& source, int step, int,
                     Stream) const override {
    refusing([&] { kernels::cpu::write_windows(cache, source, step, at::get_num_threads()); });
  }

  void encode(const CacheView& cache, const EncodeSpec& spec, const TokenSource& source, int step,
              int, Stream) const override {
    refusing([&] { kernels::cpu::encode(cache, spec, source, step, at::get_num_threads()); });
  }

  void dequantize(const CacheView& cache, const EncodeSpec* spec, void* key, void* value,
                  kernels::Type type, int64_t row_capacity) const override {
    refusing([&] {
      kernels::cpu::dequantize(cache, spec, key, value, type, row_capacity, at::get_num_threads());
    });
  }

  Work plan_attend(const CacheView& cache, const AttendArgs& args, int) const override {
    return [cache, args](Stream) {
      refusing([&] { kernels::cpu::attend(cache, args, at::get_num_threads()); });
    };
  }

  std::vector<double> time(const Work& work, int runs) const override {
    work(nullptr);
    std::vector<double> nanoseconds;
    for (int i = 0; i < runs; ++i) {
      const auto begin = std::chrono::steady_clock::now();
      work(nullptr);
      const auto end = std::chrono::steady_clock::now();
      nanoseconds.push_back(std::chrono::duration<double, std::nano>(end - begin).count());
    }
    return nanoseconds;
  }
};

class CudaEngine final : public Engine {
 public:
  Memory allocate(int64_t bytes) const override { return kernels::cuda::allocate(bytes); }

  Memory place(const at::Tensor& contiguous) const override {
    const auto bytes = static_cast<int64_t>(contiguous.nbytes());
    Memory memory = allocate(bytes);
    write(memory.get(), contiguous.data_ptr(), bytes);
    return memory;
  }

  void write(void* to, const void* host, int64_t bytes) const override {
    kernels::cuda::copy_in(to, host, bytes);
  }
  void read(void* host, const void* from, int64_t bytes) const override {
    kernels::cuda::copy_out(host, from, bytes);
  }

  void write_windows(const CacheView& cache, const TokenSource& source, int step, int max_tokens,
                     Stream stream) const override {
    refusing([&] { kernels::cuda::write_windows(cache, source, step, max_tokens, stream); });
  }

  void encode(const CacheView& cache, const EncodeSpec& spec, const TokenSource& source, int step,
              int max_tokens, Stream stream) const override {
    refusing([&] { kernels::cuda::encode(cache, spec, source, step, max_tokens, stream); });
  }

  void dequantize(const CacheView& cache, const EncodeSpec* spec, void* key, void* value,
                  kernels::Type type, int64_t row_capacity) const override {
    refusing(
        [&] { kernels::cuda::dequantize(cache, spec, key, value, type, row_capacity, nullptr); });
  }

  Work plan_attend(const CacheView& cache, const AttendArgs& args, int max_tokens) const override {
    return refusing([&]() -> Work {
      const kernels::cuda::AttendPlan plan =
          kernels::cuda::plan_attend(cache, args, max_tokens, kernels::cuda::device());
      const Memory scratch = allocate(plan.scratch_bytes);
      return [plan, cache, args, scratch](Stream stream) {
        kernels::cuda::attend(plan, cache, args, scratch.get(), stream);
      };
    });
  }

  std::vector<double> time(const Work& work, int runs) const override {
    // A sample is a graph of runs; many samples of short graphs tell more than a few of long ones.
    constexpr int kSamples = 21, kMostLaunches = 12;
    const int launches = std::clamp(runs / kSamples, 1, kMostLaunches);
    return kernels::cuda::time_graph([&](int, Stream stream) { work(stream); }, launches,
                                     runs / launches);
  }
};

}  // namespace

kernels::Type element_type(const at::Tensor& x) {
  return x.scalar_type() == at::kHalf       ? kernels::Type::f16
         : x.scalar_type() == at::kBFloat16 ? kernels::Type::bf16
                                            : kernels::Type::f32;
}

std::shared_ptr<const Engine> make_engine(const std::string& backend) {
  if (auto reason = missing_backend(backend)) throw Error(*reason);
  if (backend == "cuda") return std::make_shared<CudaEngine>();
  return std::make_shared<CpuEngine>();
}

}  // namespace kvlab::cache
