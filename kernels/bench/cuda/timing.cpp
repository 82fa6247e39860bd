#include "timing.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "clocks.h"
#include "samples.h"
#include "traffic.h"

namespace kvlab::bench {
namespace {

namespace cuda = kernels::cuda;

Rates measured_rates() {
  constexpr std::int64_t kBytes = std::int64_t{1} << 30;
  const auto from = cuda::allocate(kBytes);
  const auto to = cuda::allocate(kBytes);
  fill_normal(from.get(), kBytes / 2, 1, nullptr);
  const int multiprocessors = cuda::device().multiprocessors;
  const double copy = median(time_rotating(
      1, [&](int, Stream stream) { cuda::copy_within(to.get(), from.get(), kBytes, stream); }));
  const double read = median(time_fastest(kReadWays, 1, [&](int way, int, Stream stream) {
    read_only(way, from.get(), kBytes, multiprocessors, stream);
  }));
  constexpr auto kNanoseconds = 1e9;
  return {2.0 * kBytes / copy * kNanoseconds, kBytes / read * kNanoseconds};
}

}  // namespace

const Rates& rates() {
  static const Rates rates = measured_rates();
  return rates;
}

int copies_of(double bytes, bool cold) {
  constexpr double kTogether = 300e6;
  constexpr int kMost = 512;
  return cold ? std::min(kMost, static_cast<int>(kTogether / bytes) + 1) : 1;
}

int launches_of(int copies) {
  constexpr int kLeast = 12;
  return (kLeast + copies - 1) / copies * copies;
}

void report(benchmark::State& state, const std::vector<double>& nanoseconds, double bytes) {
  const double seconds = median(nanoseconds) * 1e-9;
  for (const double sample : nanoseconds) keep_sample(sample);
  for ([[maybe_unused]] auto _ : state) state.SetIterationTime(seconds);
  state.counters["bytes"] = bytes;
  state.counters["bytes_per_second"] = bytes / seconds;
  state.counters["of_copy"] = bytes / seconds / rates().copy;
  state.counters["of_read"] = bytes / seconds / rates().read;
  if (const auto now = clocks()) {
    state.counters["sm_mhz"] = now->sm_mhz;
    if (!now->throttled.empty()) keep_warning("the GPU was slowed down by " + now->throttled);
  }
}

std::vector<double> time_rotating(int copies, const std::function<void(int, Stream)>& launch) {
  return cuda::time_graph([&](int i, Stream stream) { launch(i % copies, stream); },
                          launches_of(copies), kSamples);
}

std::vector<double> time_fastest(int ways, int copies,
                                 const std::function<void(int, int, Stream)>& launch) {
  std::vector<double> best;
  for (int way = 0; way < ways; ++way) {
    std::vector<double> samples =
        time_rotating(copies, [&](int copy, Stream stream) { launch(way, copy, stream); });
    if (best.empty() || median(samples) < median(best)) best = std::move(samples);
  }
  return best;
}

void add_case(const CaseName& name, const std::function<void(benchmark::State&)>& run) {
  const std::string text = text_of(name);
  benchmark::RegisterBenchmark(text.c_str(),
                               [text, run](benchmark::State& state) {
                                 begin_samples(text);
                                 // A GPU at its power limit is slower: it rests between cases.
                                 std::this_thread::sleep_for(std::chrono::milliseconds(50));
                                 try {
                                   run(state);
                                 } catch (const std::exception& error) {
                                   state.SkipWithError(error.what());
                                 }
                               })
      ->UseManualTime()
      ->Iterations(1)
      ->Unit(benchmark::kMicrosecond);
}

}  // namespace kvlab::bench
