#include "model/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace kvlab::model {
namespace {

/// Frequencies of wavelengths that the model saw in full are kept, long ones are divided by the
/// factor, those between are mixed (Llama 3.1).
at::Tensor llama3(const at::Tensor& plain, const RopeSpec& rope) {
  const at::Tensor waves = 2 * std::numbers::pi / plain;
  const double longest = rope.original_positions / rope.low_factor;
  const double shortest = rope.original_positions / rope.high_factor;
  const at::Tensor divided = at::where(waves.gt(longest), plain / rope.factor, plain);
  const at::Tensor share =
      (rope.original_positions / waves - rope.low_factor) / (rope.high_factor - rope.low_factor);
  const at::Tensor mixed = (1 - share) * divided / rope.factor + share * divided;
  const at::Tensor between = waves.ge(shortest).logical_and_(waves.le(longest));
  return at::where(between, mixed, divided);
}

/// Fast channels are kept, slow ones divided by the factor, a linear ramp lies between (YaRN, arXiv
/// 2309.00071).
at::Tensor yarn(const at::Tensor& powers, const RopeSpec& rope, int64_t head_dim) {
  const auto d = static_cast<double>(head_dim);
  const auto channel_of = [&](double turns) {
    return d * std::log(rope.original_positions / (turns * 2 * std::numbers::pi)) /
           (2 * std::log(rope.theta));
  };
  double low = channel_of(rope.beta_fast);
  double high = channel_of(rope.beta_slow);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, d - 1);
  if (low == high) high += 0.001;  // as transformers avoids a division by 0
  const at::Tensor slow =
      ((at::arange(head_dim / 2, at::kFloat) - low) / (high - low)).clamp_(0, 1);
  const at::Tensor fast = 1 - slow;
  return (rope.factor * powers).reciprocal() * (1 - fast) + powers.reciprocal() * fast;
}

}  // namespace

at::Tensor inverse_frequencies(const RopeSpec& rope, int64_t head_dim) {
  const at::Tensor exponents =
      at::arange(0, head_dim, 2, at::kFloat) / static_cast<double>(head_dim);
  const at::Tensor powers = at::pow(rope.theta, exponents);
  switch (rope.kind) {
    case RopeSpec::Kind::plain:
      break;
    case RopeSpec::Kind::linear:
      return powers.reciprocal() / rope.factor;
    case RopeSpec::Kind::llama3:
      return llama3(powers.reciprocal(), rope);
    case RopeSpec::Kind::yarn:
      return yarn(powers, rope, head_dim);
  }
  return powers.reciprocal();
}

Angles angles(const at::Tensor& frequencies, double attention_factor, int64_t first, int64_t n) {
  const at::Tensor positions = at::arange(first, first + n, frequencies.options()).unsqueeze(1);
  const at::Tensor half = positions * frequencies.unsqueeze(0);
  const at::Tensor both = at::cat({half, half}, 1);
  return {both.cos() * attention_factor, both.sin() * attention_factor};
}

at::Tensor rotate(const at::Tensor& x, const Angles& angles) {
  const std::vector<at::Tensor> halves = x.chunk(2, -1);
  const at::Tensor crossed = at::cat({-halves[1], halves[0]}, -1);
  return x * angles.cos.to(x.scalar_type()) + crossed * angles.sin.to(x.scalar_type());
}

}  // namespace kvlab::model
