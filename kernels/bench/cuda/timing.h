#pragma once

#include <benchmark/benchmark.h>

#include <functional>
#include <string>
#include <vector>

#include "case_name.h"
#include "kvlab/kernels/cuda_device.h"

namespace kvlab::bench {

using kernels::cuda::Stream;

/// Bandwidths that this GPU reaches, in bytes a second, measured once in this process.
struct Rates {
  double copy = 0;  // cudaMemcpyAsync within the GPU's memory, bytes read and bytes written
  double read = 0;  // loads alone
};
const Rates& rates();

inline constexpr int kSamples = 21;

/// Copies of `bytes` that together are more than twice the L2 of any GPU so far.
int copies_of(double bytes, bool cold);

/// Launches of a graph that uses each copy equally often.
int launches_of(int copies);

/// Medians and counters of a case from its samples, nanoseconds a launch.
void report(benchmark::State& state, const std::vector<double>& nanoseconds, double bytes);

/// Times launch(copy, stream) over rotating copies.
std::vector<double> time_rotating(int copies, const std::function<void(int, Stream)>& launch);

/// The samples of the fastest of `ways` ways.
std::vector<double> time_fastest(int ways, int copies,
                                 const std::function<void(int way, int copy, Stream)>& launch);

/// Registers a case that reports its median; whatever it throws is its error.
void add_case(const CaseName& name, const std::function<void(benchmark::State&)>& run);

}  // namespace kvlab::bench
