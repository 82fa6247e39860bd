#include "calibrate/learn.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>

#include <cmath>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/error.h"
#include "calibrate/learn_loss.h"
#include "catch.h"
#include "method/schema.h"
#include "quant/straight_through.h"
#include "transform/transform.h"

using namespace kvlab::calibrate;

namespace {

constexpr int64_t kHeads = 2;
constexpr int64_t kQueryHeads = 4;
constexpr int64_t kDim = 32;
constexpr int64_t kWidth = 48;

at::Tensor gaussian(at::IntArrayRef shape, uint64_t seed) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  return at::randn(shape, generator);
}

/// Keys with a mean and a few strong channels, so that a rotation has something to gain.
Sequence sequence_of(int64_t length, uint64_t seed) {
  at::Tensor weight = at::ones({kDim});
  weight.slice(0, 0, 4).mul_(5.0);
  Sequence sequence;
  sequence.q = gaussian({kQueryHeads, length, kDim}, seed);
  sequence.k = gaussian({kHeads, length, kDim}, seed + 1) * weight + 0.5;
  sequence.v = gaussian({kHeads, length, kDim}, seed + 2) * weight.flip(0);
  return sequence;
}

LearnInput small_input() {
  LearnInput input;
  input.train = {sequence_of(96, 10), sequence_of(96, 20)};
  input.held_out = {sequence_of(96, 30)};
  input.w_o = gaussian({kWidth, kQueryHeads * kDim}, 40) * 0.1;
  input.center = at::full({kHeads, kDim}, 0.5);
  input.base_key = kvlab::transform::hadamard(kDim).unsqueeze(0);
  input.base_value = input.base_key;
  return input;
}

LearnSettings small_settings() {
  LearnSettings settings;
  settings.steps = 12;
  settings.check_every = 4;
  settings.queries = 16;
  settings.sink = 8;
  settings.recent = 16;
  return settings;
}

double orthogonality(const at::Tensor& rotation) {
  const at::Tensor identity = at::eye(rotation.size(-1), rotation.options());
  return (at::matmul(rotation.transpose(-1, -2), rotation) - identity).abs().max().item<double>();
}

/// Values between the windows quantized in rotated space and rotated back, [L, d].
at::Tensor effective(const at::Tensor& x, const at::Tensor& rotation, std::optional<double> clip,
                     const LearnSettings& s) {
  at::Tensor y = x.clone();
  const at::Tensor middle = x.slice(0, s.sink, x.size(0) - s.recent);
  const at::Tensor decoded =
      kvlab::quant::straight_through(at::mm(middle, rotation).unsqueeze(0), s.bits, s.group, clip);
  y.slice(0, s.sink, x.size(0) - s.recent).copy_(at::mm(decoded[0], rotation.t()));
  return y;
}

/// Both losses of a KV head by their definitions: whole attention in float64, W_O applied in full.
std::pair<double, double> plain_losses(const LearnInput& input, const Sequence& sequence,
                                       const LearnSettings& s, int64_t head, const at::Tensor& r) {
  const int64_t length = sequence.k.size(1);
  const int64_t share = kQueryHeads / kHeads;
  const at::Tensor k = sequence.k[head] - input.center[head];
  const at::Tensor v = sequence.v[head];
  const at::Tensor k_hat = effective(k, r, s.clip_key, s).to(at::kDouble);
  const at::Tensor v_hat = effective(v, r, s.clip_value, s).to(at::kDouble);
  const at::Tensor mask = at::ones({length, length}, at::kBool).triu(1);
  double key = 0.0;
  double value = 0.0;
  for (int64_t j = head * share; j < (head + 1) * share; ++j) {
    const at::Tensor q = sequence.q[j].to(at::kDouble) / std::sqrt(static_cast<double>(kDim));
    const auto attention = [&](const at::Tensor& keys) {
      return at::mm(q, keys.t())
          .masked_fill_(mask, -INFINITY)
          .softmax(-1)
          .slice(0, length - s.queries);
    };
    const at::Tensor p = attention(k.to(at::kDouble));
    const at::Tensor p_q = attention(k_hat);
    const at::Tensor w = input.w_o.slice(1, j * kDim, (j + 1) * kDim).to(at::kDouble);
    const at::Tensor v64 = v.to(at::kDouble);
    key += (at::xlogy(p, p) - at::xlogy(p, p_q)).sum(-1).mean().item<double>();
    key += s.lambda * at::mm(at::mm(p_q - p, v64), w.t()).square().mean().item<double>();
    value += at::mm(at::mm(p_q, v_hat - v64), w.t()).square().mean().item<double>();
  }
  return {key / static_cast<double>(share), value / static_cast<double>(share)};
}

/// Largest difference relative to the expected value.
double apart(const at::Tensor& ours, const at::Tensor& expected) {
  const at::Tensor e = expected.to(at::kDouble);
  return ((ours - e).abs() / e.abs()).max().item<double>();
}

}  // namespace

TEST_CASE("learning losses are those of their definitions", "[learn]") {
  const LearnInput input = small_input();
  LearnSettings settings = small_settings();
  // Queries within the quantized tokens, which may not see those after them, or all behind them.
  settings.recent = GENERATE(4, 16);
  settings.queries = GENERATE(16, 50);
  const at::Tensor key = key_loss(input, input.held_out, settings, input.base_key);
  const at::Tensor value =
      value_loss(input, input.held_out, settings, input.base_key, input.base_value);
  for (int64_t head = 0; head < kHeads; ++head) {
    const auto [plain_key, plain_value] =
        plain_losses(input, input.held_out[0], settings, head, input.base_key[0].to(at::kFloat));
    CHECK(key[head].item<double>() == Approx(plain_key).epsilon(1e-4));
    CHECK(value[head].item<double>() == Approx(plain_value).epsilon(1e-4));
  }
}

TEST_CASE("a clip ratio of the loss may be none, as a codec's", "[learn]") {
  kvlab::Settings calibrate;
  for (const kvlab::Param& param : kvlab::method::section_params("calibrate"))
    calibrate[param.key] = param.fallback;
  calibrate["clip_key"] = "none";
  calibrate["clip_value"] = 0.5;
  const LearnSettings settings = LearnSettings::from(calibrate);
  CHECK_FALSE(settings.clip_key.has_value());
  CHECK(settings.clip_value == 0.5);
}

TEST_CASE("learned rotations are orthogonal, recorded and never worse than their base", "[learn]") {
  const LearnInput input = small_input();
  const LearnSettings settings = small_settings();
  int64_t calls = 0;
  const Learned learned = learn(input, settings, [&](int64_t done, int64_t all) {
    CHECK(done == ++calls);
    CHECK(all == 2 * settings.steps);
  });
  CHECK(calls == 2 * settings.steps);
  for (const LearnedSide* side : {&learned.key, &learned.value}) {
    CHECK(side->rotation.sizes() == at::IntArrayRef({kHeads, kDim, kDim}));
    CHECK(orthogonality(side->rotation) < 1e-6);
    CHECK(side->loss.le(side->base_loss).all().item<bool>());
    CHECK(at::equal(side->loss.lt(side->base_loss), side->kept));
    CHECK(side->curve.sizes() == at::IntArrayRef({settings.steps, kHeads}));
    CHECK(at::isfinite(side->curve).all().item<bool>());
  }
  CHECK(learned.key.kept.any().item<bool>());
  CHECK(learned.value.kept.any().item<bool>());

  // The losses are those of what is returned.
  const at::Tensor key = key_loss(input, input.held_out, settings, learned.key.rotation);
  CHECK(apart(key, learned.key.loss) < 1e-6);
  const at::Tensor value =
      value_loss(input, input.held_out, settings, learned.key.rotation, learned.value.rotation);
  CHECK(apart(value, learned.value.loss) < 1e-6);
}

TEST_CASE("a head that does not improve by the margin stays at its base", "[learn]") {
  const LearnInput input = small_input();
  LearnSettings settings = small_settings();
  settings.margin = 0.99;
  const Learned learned = learn(input, settings, {});
  CHECK_FALSE(learned.key.kept.any().item<bool>());
  CHECK(at::equal(learned.key.rotation, input.base_key.expand({kHeads, kDim, kDim})));
  CHECK(at::equal(learned.key.loss, learned.key.base_loss));
}

TEST_CASE("one side can be learned alone", "[learn]") {
  LearnInput input = small_input();
  const LearnSettings settings = small_settings();
  input.base_key = at::Tensor();
  const Learned learned = learn(input, settings, {});
  CHECK_FALSE(learned.key.rotation.defined());
  REQUIRE(learned.value.rotation.defined());
  const at::Tensor exact_keys = value_loss(input, input.held_out, settings, {}, input.base_value);
  CHECK(apart(exact_keys, learned.value.base_loss) < 1e-6);
}

TEST_CASE("learning ends at the same rotation on any number of threads", "[learn]") {
  const LearnInput input = small_input();
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const Learned one = learn(input, small_settings(), {});
  at::set_num_threads(2);
  const Learned two = learn(input, small_settings(), {});
  at::set_num_threads(threads);
  CHECK(at::equal(one.key.rotation, two.key.rotation));
  CHECK(at::equal(one.value.rotation, two.value.rotation));
  CHECK(at::equal(one.value.curve, two.value.curve));
}

TEST_CASE("progress can stop learning", "[learn]") {
  const auto stop = [](int64_t done, int64_t) {
    if (done == 3) throw std::runtime_error("stopped");
  };
  CHECK_THROWS_WITH(learn(small_input(), small_settings(), stop), "stopped");
}

TEST_CASE("sequences too short for the windows are refused", "[learn]") {
  LearnInput input = small_input();
  LearnSettings settings = small_settings();
  input.held_out = {sequence_of(31, 50)};
  CHECK_THROWS_AS(learn(input, settings, {}), kvlab::Unsupported);
  CHECK_THROWS_WITH(
      learn(input, settings, {}),
      "a learning sequence of 31 tokens is too short: sink 8, recent 16 and 16 queries need 32");
  input.held_out = {};
  CHECK_THROWS_AS(learn(input, settings, {}), kvlab::Unsupported);
}
