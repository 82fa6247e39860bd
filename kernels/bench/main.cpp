#include <benchmark/benchmark.h>

#include "base/allocator.h"

namespace kvlab::bench {
void register_cpu();
void register_experiments();
}  // namespace kvlab::bench

int main(int argc, char** argv) {
  kvlab::keep_memory_low();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  kvlab::bench::register_cpu();
  kvlab::bench::register_experiments();
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
