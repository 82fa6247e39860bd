#include <benchmark/benchmark.h>

namespace kvlab::bench {
void register_experiments();
}  // namespace kvlab::bench

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  kvlab::bench::register_experiments();
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
