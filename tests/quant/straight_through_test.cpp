#include "quant/straight_through.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <functional>
#include <optional>
#include <string>

#include "catch.h"
#include "quant/codec.h"
#include "quant/plain_codec.h"

using kvlab::quant::straight_through;

namespace {

at::Tensor gaussian(at::IntArrayRef shape, uint64_t seed) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  return at::randn(shape, generator);
}

/// OptR's quantizer in plain operations, differentiated by autograd; float64 for a sharp
/// comparison.
at::Tensor peer_formula(const at::Tensor& x, int64_t bits, int64_t group,
                        std::optional<double> clip) {
  const double steps = static_cast<double>((1 << bits) - 1);
  at::Tensor y = x.reshape({x.size(0), x.size(1), -1, group});
  if (clip) {
    const auto index = static_cast<int64_t>(*clip * static_cast<double>(group));
    const at::Tensor t = std::get<0>(y.detach().abs().sort(-1)).slice(-1, index, index + 1);
    y = at::maximum(at::minimum(y, t), t.neg());
  }
  const at::Tensor lo = y.amin(-1, true);
  const at::Tensor scale = (y.amax(-1, true) - lo).clamp_min(1e-8) / steps;
  const at::Tensor offset = lo.neg() / scale;
  const at::Tensor u = y / scale + offset;
  const at::Tensor codes = u + ((u + 0.5).floor().clamp(0, steps) - u).detach();
  return ((codes - offset) * scale).reshape(x.sizes());
}

at::Tensor gradient_of(const std::function<at::Tensor(const at::Tensor&)>& fn, const at::Tensor& x,
                       const at::Tensor& weight) {
  at::Tensor leaf = x.detach().clone().requires_grad_();
  (fn(leaf) * weight).sum().backward();
  return leaf.grad();
}

}  // namespace

TEST_CASE("straight-through values are those of the uniform codec", "[straight_through]") {
  const auto [d, group, bits, clip] =
      GENERATE(table<int64_t, int64_t, int64_t, double>({{64, 128, 2, 0.96},
                                                         {128, 128, 2, 0.92},
                                                         {128, 32, 2, 0.96},
                                                         {64, 64, 4, 0.0},
                                                         {80, 80, 3, 0.9}}));
  at::Tensor x = gaussian({3, 50, d}, 7) * 3.0;
  x[0][0].fill_(1.25);
  x[1][3].zero_();
  const kvlab::Settings settings = {{"kind", "uniform"},     {"bits", bits},
                                    {"axis", "token"},       {"group", group},
                                    {"grid", "float_zero"},  {"zero", "value"},
                                    {"clip", clip},          {"clip_kind", "order"},
                                    {"clip_scope", "group"}, {"clip_source", "dynamic"},
                                    {"rounding", "half_up"}, {"params", "fp32"}};
  const auto codec = kvlab::quant::make_codec(plain::uniform(settings), d);
  const at::Tensor expected = codec->decode(codec->encode(x, {}));
  CHECK(at::equal(straight_through(x, bits, group, clip), expected));
}

TEST_CASE("the straight-through gradient is that of OptR's formula", "[straight_through]") {
  const auto [group, clip] = GENERATE(table<int64_t, double>({{64, 0.96}, {32, 0.92}, {64, 0.0}}));
  const std::optional<double> ratio = clip > 0.0 ? std::optional<double>(clip) : std::nullopt;
  const at::Tensor x = gaussian({2, 40, 64}, 11);
  const at::Tensor weight = gaussian({2, 40, 64}, 12);
  const at::Tensor ours = gradient_of(
      [&](const at::Tensor& t) { return straight_through(t, 2, group, ratio); }, x, weight);
  const at::Tensor theirs =
      gradient_of([&](const at::Tensor& t) { return peer_formula(t, 2, group, ratio); },
                  x.to(at::kDouble), weight.to(at::kDouble));
  CHECK((ours - theirs).abs().max().item<double>() < 1e-5 * theirs.abs().max().item<double>());
}

TEST_CASE("the straight-through gradient is the slope where codes do not change",
          "[straight_through]") {
  // An exact difference quotient exists for lo and hi alone: moving them moves every level, while
  // inner elements only choose a code.
  const at::Tensor x =
      at::tensor({-1.0f, -0.3f, 0.1f, 0.4f, 0.55f, 1.2f, 2.0f, 1.9f}).reshape({1, 1, 8});
  const at::Tensor weight =
      at::tensor({0.5f, -1.0f, 2.0f, 0.3f, 1.0f, -0.7f, 0.9f, 0.2f}).reshape({1, 1, 8});
  const auto loss = [&](const at::Tensor& t) {
    return (straight_through(t, 2, 8, std::nullopt).to(at::kDouble) * weight).sum().item<double>();
  };
  const at::Tensor gradient = gradient_of(
      [&](const at::Tensor& t) { return straight_through(t, 2, 8, std::nullopt); }, x, weight);
  // The slope of the true function leaves out what goes straight through: Σ w·u of the elements'
  // own place.
  const at::Tensor u = (x + 1.0) * (3.0 / 3.0);
  for (const int64_t i : {int64_t{0}, int64_t{6}}) {
    at::Tensor up = x.clone();
    at::Tensor down = x.clone();
    up[0][0][i] += 1e-3;
    down[0][0][i] -= 1e-3;
    const double slope = (loss(up) - loss(down)) / 2e-3;
    const at::Tensor share = i == 6 ? u / 3.0 : 1.0 - u / 3.0;  // d(lo + u·s) with u held
    const double own = weight[0][0][i].item<double>();
    const double expected = slope - (weight * share).sum().item<double>() + own;
    CHECK(gradient[0][0][i].item<double>() == Approx(expected).margin(2e-3));
  }
}
