#include "data/rope.h"

#include <cmath>

#include "base/error.h"
#include "catch.h"
#include "data/pre_rope.h"
#include "quant/plain_codec.h"

using namespace kvlab;
using data::Rope;

namespace {

/// Two tokens of d = 4 at positions 0 and 1.
at::Tensor two_tokens() {
  return at::tensor({1.0, 2.0, 3.0, 4.0, 1.0, 2.0, 3.0, 4.0}, at::kDouble).reshape({2, 4});
}

data::Sample sample_of(const Rope& rope, DType dtype = DType::fp32) {
  data::Sample sample;
  const at::Tensor before = plain::gaussian({2, 3, 50, 8}, 5);
  sample.k = rope.turned(before);
  sample.v = sample.q = before;
  sample.positions = at::arange(50, at::kLong);
  sample.dtype = dtype;
  sample.more.k_pre = [before] { return before; };
  sample.more.rope = [rope] { return rope; };
  return sample;
}

}  // namespace

TEST_CASE("RoPE by hand: theta 100 and d = 4 turn by 1 and 0.1 radians a position", "[rope]") {
  const Rope half = Rope::from(100.0, "", "half", 4);
  constexpr double kSlow = 0.1f;  // as float32 has it
  const double c1 = std::cos(1.0), s1 = std::sin(1.0), c2 = std::cos(kSlow), s2 = std::sin(kSlow);
  const at::Tensor turned = half.turned(two_tokens());
  CHECK(at::equal(turned[0], two_tokens()[0]));
  // Channel 0 turns with 2, channel 1 with 3.
  CHECK(at::allclose(
      turned[1],
      at::tensor({c1 - 3 * s1, 2 * c2 - 4 * s2, 3 * c1 + s1, 4 * c2 + 2 * s2}, at::kDouble), 0,
      1e-9));
  const Rope interleaved = Rope::from(100.0, "", "interleaved", 4);
  CHECK(at::allclose(
      interleaved.turned(two_tokens())[1],
      at::tensor({c1 - 2 * s1, 2 * c1 + s1, 3 * c2 - 4 * s2, 4 * c2 + 3 * s2}, at::kDouble), 0,
      1e-9));
  // A row that stands at position 1.
  CHECK(at::allclose(half.turned(two_tokens().narrow(0, 1, 1), 1)[0], turned[1], 0, 1e-15));
}

TEST_CASE("RoPE's inverse, and a layer without RoPE", "[rope]") {
  const at::Tensor x = plain::gaussian({3, 400, 16}, 1).to(at::kDouble);
  for (const char* layout : {"half", "interleaved"}) {
    const Rope rope = Rope::from(10000.0, "", layout, 16);
    CHECK(at::allclose(rope.turned_back(rope.turned(x, 7), 7), x, 0, 1e-14));
    CHECK_FALSE(at::allclose(rope.turned(x), x, 0, 0.1));
  }
  CHECK(at::equal(Rope::from(1.0, "", "none", 16).turned(x), x));
}

TEST_CASE("scaled RoPE: linear, llama3 and part of the channels", "[rope]") {
  const Rope plain = Rope::from(10000.0, "", "half", 64);
  const Rope linear = Rope::from(10000.0, R"({"rope_type": "linear", "factor": 4.0})", "half", 64);
  CHECK(at::equal(linear.frequencies, plain.frequencies / 4));
  const Rope llama = Rope::from(10000.0,
                                R"({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                                    "high_freq_factor": 4.0,
                                    "original_max_position_embeddings": 8192})",
                                "half", 64);
  const auto of = [](const Rope& rope, int64_t pair) {
    return rope.frequencies[pair].item<float>();
  };
  // Wavelength 2π: short, as it is. The slowest, 2π·7,499 = 47,117 > 8,192: an eighth.
  CHECK(of(llama, 0) == of(plain, 0));
  CHECK(of(llama, 31) == of(plain, 31) / 8);
  // Between: pair 22 has the wavelength 2π·10^(4·22/32) = 3,533; 8,192/3,533 = 2.3186, a share of
  // (2.3186 − 1)/3 = 0.4395 of the plain frequency and the rest of an eighth of it.
  CHECK(of(llama, 22) == Approx(of(plain, 22) * (0.4395 + 0.5605 / 8)).epsilon(1e-3));
  CHECK(Rope::from(10000.0, R"({"partial_rotary_factor": 0.5})", "half", 64).frequencies.size(0) ==
        16);
  CHECK_THROWS_AS(Rope::from(1e4, R"({"rope_type": "yarn"})", "half", 64), Unsupported);
  CHECK_THROWS_AS(Rope::from(1e4, R"({"rope_type": "dynamic"})", "half", 64), Unsupported);
  CHECK_THROWS_AS(Rope::from(1e4, R"({"rope_type": "linear"})", "half", 64), Unsupported);
  CHECK_THROWS_AS(Rope::from(1e4, "", "spiral", 64), Unsupported);
}

TEST_CASE("a model's RoPE is what its capture's attributes say", "[rope]") {
  using Kind = data::RopeSpec::Kind;
  const at::Tensor x = plain::gaussian({2, 90, 32}, 3);
  for (const Kind kind : {Kind::plain, Kind::linear, Kind::llama3, Kind::yarn}) {
    data::RopeSpec spec{.kind = kind, .theta = 1000};
    if (kind != Kind::plain) spec.factor = 8;
    if (kind == Kind::llama3 || kind == Kind::yarn) spec.original_positions = 64;
    if (kind == Kind::yarn) spec.attention_factor = 1.2079;
    const Rope model = Rope::of(spec, 32);
    const Rope read = Rope::from(spec.theta, data::scaling_text(spec), "half", 32);
    CHECK(at::equal(read.turned(x), model.turned(x)));
    // Rows of a later stretch.
    Rope later = model;
    later.origin = 40;
    CHECK(at::equal(later.turned(x.narrow(1, 40, 50)), model.turned(x).narrow(1, 40, 50)));
  }
  // YaRN by hand: theta 1000, 64 positions, 32 channels. 32 turns within them bound the fast end at
  // channel 32·ln(64/(32·2π))/(2·ln 1000) < 0, so 0; one turn the slow end at
  // 32·ln(64/2π)/(2·ln 1000) = 5.376, so 6: pair 3 is half way.
  const at::Tensor yarn = data::inverse_frequencies(
      {.kind = Kind::yarn, .theta = 1000, .factor = 8, .original_positions = 64}, 32);
  const double plain3 = std::pow(1000.0, -6.0 / 32);
  CHECK(yarn[0].item<double>() == Approx(1));
  CHECK(yarn[3].item<double>() == Approx(plain3 * (0.5 + 0.5 / 8)));
  CHECK(yarn[6].item<double>() == Approx(std::pow(1000.0, -12.0 / 32) / 8));
}

TEST_CASE("keys before RoPE are checked against the keys", "[rope]") {
  const Rope rope = Rope::from(10000.0, "", "half", 8);
  data::Sample sample = sample_of(rope);
  CHECK(at::equal(data::keys_before_rope(sample).keys, sample.more.k_pre()));
  CHECK(at::equal(data::calibration_keys_before_rope(sample), sample.more.k_pre()));

  data::Sample wrong = sample;
  wrong.more.rope = [] { return Rope::from(500.0, "", "half", 8); };
  CHECK_THROWS_WITH(data::keys_before_rope(wrong), ContainsSubstring("RoPE turns k_pre into keys"));
  wrong.more.rope = [] { return Rope::from(10000.0, "", "interleaved", 8); };
  CHECK_THROWS_AS(data::keys_before_rope(wrong), Error);

  // Both rounded to bfloat16 by themselves: no error.
  data::Sample rounded = sample_of(rope, DType::bf16);
  rounded.k = rounded.k.to(at::kBFloat16);
  const at::Tensor before = rounded.more.k_pre().to(at::kBFloat16);
  rounded.more.k_pre = [before] { return before; };
  CHECK_NOTHROW(data::keys_before_rope(rounded));

  // A calibration set without them turns its keys back.
  data::Sample bare = sample;
  bare.more.k_pre = []() -> at::Tensor { throw Unsupported("none"); };
  CHECK_THROWS_AS(data::keys_before_rope(bare), Unsupported);
  CHECK(at::allclose(data::calibration_keys_before_rope(bare), sample.more.k_pre(), 0, 1e-5));
}
