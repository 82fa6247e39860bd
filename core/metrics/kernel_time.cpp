#include "metrics/kernel_time.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "cache/kv_cache.h"

namespace kvlab::metrics {
namespace {

/// The first sequence and KV head stand for all: what differs between heads is data.
void check(const cache::KvCache& packed, const data::Sample& sample, const at::Tensor& q) {
  const cache::KvCache::Tokens held = packed.dequantize(0, 0);
  const int64_t group = sample.group();
  const at::Tensor queries = q[0].narrow(0, 0, group).squeeze(1).to(at::kFloat);
  const double scale = 1 / std::sqrt(static_cast<double>(sample.head_dim()));
  const at::Tensor expected = queries.matmul(held.k.t()).mul_(scale).softmax(-1).matmul(held.v);
  const at::Tensor found = packed.attend(q).output[0].narrow(0, 0, group).squeeze(1);
  const double error = ((found - expected).norm() / expected.norm()).item<double>();
  constexpr double kMost = 2e-3;
  if (!(error <= kMost)) {
    throw Error(
        fmt::format("not timed: attention is {:.2g} away from attention over the "
                    "dequantized cache, at most {} is right",
                    error, kMost));
  }
}

/// As many runs as take a third of a second, 5 to 200.
std::vector<double> timed(const cache::Engine& engine, const cache::Work& work) {
  constexpr double kNanoseconds = 0.3e9;
  const double once = engine.time(work, 1).front();
  return engine.time(work, static_cast<int>(std::clamp(kNanoseconds / once, 5.0, 200.0)));
}

}  // namespace

KernelTime time_kernels(const data::Sample& sample, const calibrate::Prepared& method,
                        const method::Recipe& recipe, const std::string& backend) {
  cache::KvCache packed(
      recipe, method,
      {sample.batch(), sample.kv_heads(), sample.head_dim(), sample.tokens(), sample.dtype},
      backend);
  const cache::Work encode = packed.prefill_work(sample.k, sample.v);
  const at::Tensor q = sample.q.narrow(2, sample.positions.size(0) - 1, 1);
  check(packed, sample, q);
  KernelTime time;
  time.encode = timed(packed.engine(), encode);
  time.decode = timed(packed.engine(), packed.attend_work(q));
  return time;
}

double median(std::vector<double> samples) {
  const size_t half = samples.size() / 2;
  std::sort(samples.begin(), samples.end());
  return samples.size() % 2 == 1 ? samples[half] : (samples[half - 1] + samples[half]) / 2;
}

}  // namespace kvlab::metrics
