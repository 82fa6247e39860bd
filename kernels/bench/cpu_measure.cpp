#include "cpu_measure.h"

#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>

#include <chrono>
#include <cstdint>
#include <vector>

#include "samples.h"

namespace kvlab::bench {
namespace {

double seconds_of(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// Puts other things into every cache: 256 MiB are more than any of them holds.
void evict_caches() {
  static std::vector<std::uint8_t> other(256 << 20);
  for (size_t i = 0; i < other.size(); i += 64) ++other[i];
  benchmark::ClobberMemory();
}

}  // namespace

void add_cpu_case(CaseName name, const std::function<void(benchmark::State&, bool cold)>& function,
                  int iterations) {
  for (const bool cold : {true, false}) {
    name.cold = cold;
    const std::string text = text_of(name);
    benchmark::internal::Benchmark* made =
        benchmark::RegisterBenchmark(text.c_str(), [=](benchmark::State& state) {
          begin_samples(text);
          at::set_num_threads(kThreads);
          const c10::InferenceMode no_gradients;
          function(state, cold);
        });
    made->UseManualTime()->MeasureProcessCPUTime()->Unit(benchmark::kMillisecond);
    if (iterations > 0) made->Iterations(iterations);
  }
}

void measure(benchmark::State& state, bool cold, double bytes, const std::string& wrong,
             const std::function<void()>& work, int calls) {
  if (!wrong.empty()) {
    state.SkipWithError(wrong.c_str());
    return;
  }
  work();
  for ([[maybe_unused]] auto _ : state) {
    double seconds = 0;
    for (int call = 0; call < calls; ++call) {
      if (cold) {
        state.PauseTiming();
        evict_caches();
        state.ResumeTiming();
      }
      seconds += seconds_of(work) / calls;
    }
    keep_sample(1e9 * seconds);
    state.SetIterationTime(seconds);
  }
  const auto passes = static_cast<double>(state.iterations());
  state.counters["bytes"] = bytes;
  state.counters["bytes_per_second"] =
      benchmark::Counter(bytes * passes, benchmark::Counter::kIsRate);
}

}  // namespace kvlab::bench
