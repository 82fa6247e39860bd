#include "calibrate/sequences.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"

namespace kvlab::calibrate {
namespace {

/// Tokens [first, first + length) of one sequence of the sample, with their RoPE positions as they
/// are.
Sequence slice(const data::Sample& sample, int64_t sequence, int64_t first, int64_t length) {
  const auto cut = [&](const at::Tensor& x) {
    return x[sequence].narrow(1, first, length).to(at::kFloat).contiguous();
  };
  return {cut(sample.q), cut(sample.k), cut(sample.v)};
}

}  // namespace

LearnInput cut_sequences(const data::Sample& sample, const LearnSettings& settings) {
  if (sample.positions.size(0) != sample.tokens()) {
    throw Unsupported(
        "a learned rotation needs a calibration set with the queries of all positions (probes: "
        "all)");
  }
  // The first half is learned from, the second decides which heads keep what was learned.
  const int64_t length = std::min(settings.tokens, sample.tokens()) / 2;
  LearnInput input;
  for (int64_t b = 0; b < sample.batch(); ++b) {
    input.train.push_back(slice(sample, b, 0, length));
    input.held_out.push_back(slice(sample, b, length, length));
  }
  if (sample.w_o.defined()) input.w_o = sample.w_o.to(at::kFloat);
  return input;
}

}  // namespace kvlab::calibrate
