#pragma once

#include <benchmark/benchmark.h>

#include <functional>
#include <string>

#include "case_name.h"

/// How benchmarks of the CPU are named, repeated and timed.
namespace kvlab::bench {

inline constexpr int kThreads = 2;

/// Registers the case with cold and with hot caches, each on kThreads threads of libtorch.
/// iterations: 0 leaves them to Google Benchmark, which counts no time of emptying caches.
void add_cpu_case(CaseName name, const std::function<void(benchmark::State&, bool cold)>& function,
                  int iterations = 0);

/// Times `work`, caches emptied before each call where `cold`; `wrong`: what its check found, empty
/// where it passed. An iteration, and a sample, is the mean of `calls` calls. bytes: of one call.
void measure(benchmark::State& state, bool cold, double bytes, const std::string& wrong,
             const std::function<void()>& work, int calls = 1);

}  // namespace kvlab::bench
