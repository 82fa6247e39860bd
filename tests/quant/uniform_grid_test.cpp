#include <vector>

#include "base/error.h"
#include "catch.h"
#include "quant/codec.h"
#include "quant/packing.h"
#include "quant/plain_codec.h"
#include "quant/uniform.h"

using namespace kvlab;
using kvlab::quant::make_codec;

namespace {

/// One token of one head through the codec.
struct Row {
  std::vector<int64_t> codes;
  std::vector<float> values;
  std::vector<float> params;
  int64_t saturated = 0;
};

template <class T>
std::vector<T> list(const at::Tensor& x) {
  const at::Tensor flat = x.to(c10::CppTypeToScalarType<T>::value).flatten().contiguous();
  return {flat.const_data_ptr<T>(), flat.const_data_ptr<T>() + flat.numel()};
}

Row row(const std::vector<float>& x, Settings changes, const at::Tensor& threshold = {}) {
  const auto d = static_cast<int64_t>(x.size());
  changes.emplace("group", d);
  const Settings settings = plain::uniform(changes);
  const auto codec = make_codec(settings, d);
  const quant::Encoded encoded = codec->encode(at::tensor(x).reshape({1, 1, d}), threshold);
  return {list<int64_t>(quant::unpack(encoded.codes, get_int(settings, "bits"))),
          list<float>(codec->decode(encoded)), list<float>(encoded.params),
          encoded.saturated.item<int64_t>()};
}

using Codes = std::vector<int64_t>;
using Values = std::vector<float>;

}  // namespace

TEST_CASE("float_zero by hand: scale and lowest value", "[uniform]") {
  const Row exact = row({-1, 0, 1, 2}, {});
  CHECK(exact.params == Values{1, -1});
  CHECK(exact.codes == Codes{0, 1, 2, 3});
  CHECK(exact.values == Values{-1, 0, 1, 2});
  CHECK(exact.saturated == 0);

  // s = 6/3 = 2: 0.9/2 → 0, 1.1/2 → 1, 4.9/2 = 2.45 → 2.
  const Row inner = row({10, 10.9f, 11.1f, 14.9f, 16, 10, 10, 10}, {});
  CHECK(inner.params == Values{2, 10});
  CHECK(inner.codes == Codes{0, 0, 1, 2, 3, 0, 0, 0});
  CHECK(inner.values == Values{10, 10, 12, 14, 16, 10, 10, 10});
}

TEST_CASE("float_zero by hand: ties to even and ties up", "[uniform]") {
  const std::vector<float> ties = {0, 0.5f, 1, 1.5f, 2, 2.5f, 3, 3};
  CHECK(row(ties, {}).codes == Codes{0, 0, 1, 2, 2, 2, 3, 3});
  CHECK(row(ties, {{"rounding", "half_up"}}).codes == Codes{0, 1, 1, 2, 2, 3, 3, 3});
}

TEST_CASE("float_zero by hand: code_offset stores −lo/s", "[uniform]") {
  const Settings offset = {{"zero", "code_offset"}};
  const Row exact = row({1, 2, 3, 4}, offset);
  CHECK(exact.params == Values{1, -1});
  CHECK(exact.codes == Codes{0, 1, 2, 3});
  CHECK(exact.values == Values{1, 2, 3, 4});

  // −3001 lies halfway between −3000 and −3002 in fp16 and goes to the even one: 3001 takes code 1,
  // 3004 code 4, which is clamped and counted.
  const Row coarse = row({3001, 3002, 3003, 3004}, {{"zero", "code_offset"}, {"params", "fp16"}});
  CHECK(coarse.params == Values{1, -3000});
  CHECK(coarse.codes == Codes{1, 2, 3, 3});
  CHECK(coarse.values == Values{3001, 3002, 3003, 3003});
  CHECK(coarse.saturated == 1);
}

TEST_CASE("rounded_zero by hand: the range may lose an end", "[uniform]") {
  const Settings grid = {{"grid", "rounded_zero"}};
  // s = 1, z = rint(1.5) = 2; x/s = −1.5, −0.5, 0.5, 1.5 → −2, 0, 0, 2 → codes 0, 2, 2, 4.
  const Row even = row({-1.5f, -0.5f, 0.5f, 1.5f}, grid);
  CHECK(even.params == Values{1, 2});
  CHECK(even.codes == Codes{0, 2, 2, 3});
  CHECK(even.values == Values{-2, 0, 0, 1});
  CHECK(even.saturated == 1);

  // half_up changes codes (−1, 0, 1, 2 before z) but never the zero point, which stays 2.
  const Row up =
      row({-1.5f, -0.5f, 0.5f, 1.5f}, {{"grid", "rounded_zero"}, {"rounding", "half_up"}});
  CHECK(up.params == Values{1, 2});
  CHECK(up.codes == Codes{1, 2, 3, 3});
  CHECK(up.values == Values{-1, 0, 1, 1});

  // −lo/s = 0.5 and 2.5: to even, where half_up would take 1 and 3.
  CHECK(row({-0.5f, 0, 1, 2.5f}, {{"grid", "rounded_zero"}, {"rounding", "half_up"}}).params ==
        Values{1, 0});
  CHECK(row({-2.5f, 0, 0, 0.5f}, {{"grid", "rounded_zero"}, {"rounding", "half_up"}}).params ==
        Values{1, 2});
}

TEST_CASE("rounded_zero by hand: the zero point may lie outside the codes", "[uniform]") {
  const Row far = row({5, 5.5f, 6, 6.5f}, {{"grid", "rounded_zero"}});
  CHECK(far.params == Values{0.5f, -10});
  CHECK(far.codes == Codes{0, 1, 2, 3});
  CHECK(far.values == Values{5, 5.5f, 6, 6.5f});
  const Row below = row({-6.5f, -6, -5.5f, -5}, {{"grid", "rounded_zero"}});
  CHECK(below.params == Values{0.5f, 13});
  CHECK(below.values == Values{-6.5f, -6, -5.5f, -5});
}

TEST_CASE("symmetric by hand: levels −M…M and no zero point", "[uniform]") {
  const Settings grid = {{"grid", "symmetric"}};
  const Row even = row({-2, -1, 0.9f, 1}, grid);  // s = 2
  CHECK(even.params == Values{2});
  CHECK(even.codes == Codes{0, 1, 1, 1});
  CHECK(even.values == Values{-2, 0, 0, 0});
  CHECK(row({-2, -1, 0.9f, 1}, {{"grid", "symmetric"}, {"rounding", "half_up"}}).codes ==
        Codes{0, 1, 1, 2});

  // 4 bits: M = 7, s = 14/7 = 2.
  const Row wide = row({14, -14, 3.1f, -4.9f}, {{"grid", "symmetric"}, {"bits", 4}});
  CHECK(wide.params == Values{2});
  CHECK(wide.codes == Codes{14, 0, 9, 5});
  CHECK(wide.values == Values{14, -14, 4, -4});
}

TEST_CASE("order clipping by hand: the row's, the group's and the calibrated threshold",
          "[uniform]") {
  const std::vector<float> x = {1, -2, 3, 4, -40, 5, 6, 7};
  // Ascending |x|: 1 2 3 4 5 6 7 40; index int(0.75·8) = 6 → 7. The row is clamped to ±7: lo = −7,
  // hi = 7.
  const Row whole = row(x, {{"clip", 0.75}, {"bits", 1}});
  CHECK(whole.params == Values{14, -7});
  CHECK(whole.values == Values{7, -7, 7, 7, -7, 7, 7, 7});
  CHECK(whole.saturated == 1);  // −40 alone: rint(−33/14) = −2

  // Groups of 4: |x| 1 2 3 4 → index 3 → 4; 5 6 7 40 → 40.
  const Row grouped = row(x, {{"clip", 0.75}, {"clip_scope", "group"}, {"group", 4}, {"bits", 1}});
  CHECK(grouped.params == Values{6, -2, 47, -40});
  // The row's threshold over the same groups.
  const Row by_row = row(x, {{"clip", 0.75}, {"group", 4}, {"bits", 1}});
  CHECK(by_row.params == Values{6, -2, 14, -7});

  // A calibrated threshold replaces both, whatever the scope says.
  const Row calibrated =
      row(x, {{"clip", 0.75}, {"clip_source", "calibrated"}, {"clip_scope", "group"}, {"bits", 1}},
          at::tensor({3.0f}));
  CHECK(calibrated.params == Values{6, -3});
  // (x + 3)/6 of −40, 6 and 7 is −6.2, 1.5 and 1.7: −6, 2 and 2.
  CHECK(calibrated.saturated == 3);
}

TEST_CASE("range clipping by hand multiplies lo and hi", "[uniform]") {
  // lo = −4·0.5, hi = 6·0.5: s = 5/3.
  const Row half = row({-4, 0, 1, 6}, {{"clip", 0.5}, {"clip_kind", "range"}});
  CHECK(half.params == Values{5.0f / 3.0f, -2});
  CHECK(half.codes == Codes{0, 1, 2, 3});  // −1.2, 1.2, 1.8, 4.8
  CHECK(half.saturated == 2);
  const Row symmetric =
      row({-4, 0, 1, 6}, {{"clip", 0.5}, {"clip_kind", "range"}, {"grid", "symmetric"}});
  CHECK(symmetric.params == Values{3});
  CHECK(symmetric.codes == Codes{0, 1, 1, 2});  // rint(−4/3) = −1, rint(1/3) = 0, rint(2) → clamped
  CHECK(symmetric.saturated == 1);
}

TEST_CASE("clip none, 0 and 1 are off for both kinds", "[uniform]") {
  const std::vector<float> x = {1, -2, 3, 4, -40, 5, 6, 7};
  const auto kind = GENERATE(std::string("order"), std::string("range"));
  const Row plain_row = row(x, {{"clip_kind", kind}});
  for (const double ratio : {0.0, 1.0, 1.5}) {
    const Row clipped = row(x, {{"clip", ratio}, {"clip_kind", kind}});
    CHECK(clipped.values == plain_row.values);
    CHECK(clipped.saturated == 0);
  }
}

TEST_CASE("a calibrated clip without its threshold is refused", "[uniform]") {
  CHECK_THROWS_WITH(row({1, 2, 3, 4}, {{"clip", 0.5}, {"clip_source", "calibrated"}}),
                    ContainsSubstring("threshold is missing"));
}

TEST_CASE("a per-channel group is tokens of one channel, a per-token group channels of one token",
          "[uniform]") {
  // Channel c of token t holds 10·c + t: per channel the four tokens are exact, per token pairs of
  // channels are.
  const at::Tensor x =
      (at::arange(4).unsqueeze(1) + 10 * at::arange(4)).to(at::kFloat).unsqueeze(0);
  const auto channel = make_codec(plain::uniform({{"axis", "channel"}, {"group", 4}}), 4);
  const quant::Encoded by_channel = channel->encode(x, {});
  CHECK(by_channel.params.sizes() == at::IntArrayRef({1, 1, 4, 2}));
  CHECK(at::equal(by_channel.params[0][0],
                  at::tensor({1.f, 0.f, 1.f, 10.f, 1.f, 20.f, 1.f, 30.f}).reshape({4, 2})));
  CHECK(at::equal(channel->decode(by_channel), x));

  const auto token = make_codec(plain::uniform({{"group", 2}}), 4);
  const quant::Encoded by_token = token->encode(x, {});
  CHECK(by_token.params.sizes() == at::IntArrayRef({1, 4, 2, 2}));
  CHECK(by_token.params[0][3][1][1].item<float>() == 23.0f);  // channels 2 and 3 of token 3
  CHECK(at::equal(token->decode(by_token), x));
}

TEST_CASE("D16 the codec equals scalar loops, whatever its settings", "[uniform]") {
  const auto grid = GENERATE(std::string("float_zero"), std::string("code_offset"),
                             std::string("rounded_zero"), std::string("symmetric"));
  const auto params = GENERATE(std::string("fp32"), std::string("fp16"), std::string("bf16"));
  const auto rounding = GENERATE(std::string("half_even"), std::string("half_up"));
  const auto axis = GENERATE(std::string("channel"), std::string("token"));
  struct Clip {
    nlohmann::json ratio;
    std::string kind, scope, source;
  };
  const std::vector<Clip> clips = {{"none", "order", "row", "dynamic"},
                                   {0.9, "order", "row", "dynamic"},
                                   {0.9, "order", "group", "dynamic"},
                                   {0.9, "order", "row", "calibrated"},
                                   {0.8, "range", "row", "dynamic"}};
  std::vector<at::Tensor> inputs = {
      plain::gaussian({2, 16, 16}, 1),
      plain::gaussian({2, 16, 16}, 2) * 0.05 + 100.0,    // offset far above the spread
      plain::whole(-6, 6, {2, 16, 16}, 3) * 0.5,         // ties
      plain::gaussian({2, 16, 16}, 4).pow(3) * 40000.0,  // beyond fp16
      plain::gaussian({2, 16, 16}, 5) * 3e-8,            // below fp16
  };
  inputs.back()[0].narrow(0, 0, 8).zero_();
  inputs[0][1].select(1, 3).fill_(-2.5);
  inputs[0][0][5].fill_(7.0);
  const std::vector<float> calibrated = {1.5f, 0.75f};
  for (const int64_t bits : {1, 2, 3, 4, 8}) {
    if (grid == "symmetric" && bits == 1) continue;
    for (const Clip& clip : clips) {
      const Settings settings =
          plain::uniform({{"grid", grid == "code_offset" ? "float_zero" : grid},
                          {"zero", grid == "code_offset" ? "code_offset" : "value"},
                          {"params", params},
                          {"rounding", rounding},
                          {"axis", axis},
                          {"bits", bits},
                          {"group", 8},
                          {"clip", clip.ratio},
                          {"clip_kind", clip.kind},
                          {"clip_scope", clip.scope},
                          {"clip_source", clip.source}});
      const auto codec = make_codec(settings, 16);
      for (size_t i = 0; i < inputs.size(); ++i) {
        CAPTURE(grid, params, rounding, axis, bits, clip.kind, clip.scope, clip.source, i);
        const at::Tensor threshold =
            clip.source == "calibrated" ? at::tensor(calibrated) : at::Tensor();
        const quant::Encoded encoded = codec->encode(inputs[i], threshold);
        const plain::Coded expected = plain::quantize(inputs[i], settings, calibrated);
        CHECK(at::equal(quant::unpack(encoded.codes, bits), expected.codes));
        CHECK(at::equal(encoded.params.to(at::kFloat), expected.params));
        CHECK(at::equal(codec->decode(encoded), expected.values));
        CHECK(at::equal(encoded.saturated, expected.saturated));
      }
    }
  }
}

TEST_CASE("D16 the bit width sets the number of codes and the error", "[uniform]") {
  // The error falls with 1/(2^b − 1)².
  const at::Tensor x = plain::flat_random({1, 8192, 32}, 21);
  const auto [bits, mse] =
      GENERATE(table<int64_t, double>({{2, 7.67e-3}, {3, 1.41e-3}, {4, 3.07e-4}, {8, 1.06e-6}}));
  const auto codec = make_codec(plain::uniform({{"bits", bits}, {"group", 32}}), 32);
  const quant::Encoded encoded = codec->encode(x, {});
  const at::Tensor seen = std::get<0>(at::_unique2(quant::unpack(encoded.codes, bits)));
  CHECK(seen.numel() == (1 << bits));
  CHECK((codec->decode(encoded) - x).square().mean().item<double>() == Approx(mse).epsilon(0.03));
}

TEST_CASE("D71 the stored scale is the one that decoding uses", "[uniform]") {
  const auto grid =
      GENERATE(std::string("float_zero"), std::string("rounded_zero"), std::string("symmetric"));
  const auto axis = GENERATE(std::string("channel"), std::string("token"));
  const at::Tensor x = plain::gaussian({2, 64, 32}, 9) + 0.3;
  const auto codec =
      make_codec(plain::uniform({{"grid", grid}, {"axis", axis}, {"group", 32}}), 32);
  quant::Encoded encoded = codec->encode(x, {});
  const at::Tensor before = codec->decode(encoded);
  at::Tensor origin = at::zeros_like(before);  // the zero point decodes to 0 on the other two grids
  if (grid == "float_zero") {
    const at::Tensor lowest = encoded.params.select(-1, 1);  // [H, n/32, 32] or [H, n, 1]
    origin = axis == "channel" ? lowest.repeat_interleave(32, 1) : lowest.expand({2, 64, 32});
  }
  encoded.params.select(-1, 0).mul_(2);
  const at::Tensor after = codec->decode(encoded);
  CHECK(at::allclose(after - origin, (before - origin) * 2, 0, 2e-6));
  CHECK_FALSE(at::equal(after, before));
}

TEST_CASE("D20 D39 a group's codes depend on its own tokens alone", "[uniform]") {
  // What later tokens do, or how many there are, changes nothing in complete groups before them.
  const auto axis = GENERATE(std::string("channel"), std::string("token"));
  const at::Tensor x = plain::gaussian({2, 160, 32}, 30);
  const auto codec = make_codec(
      plain::uniform({{"axis", axis}, {"group", 32}, {"clip", 0.9}, {"params", "fp16"}}), 32);
  const quant::Encoded whole = codec->encode(x, {});
  for (const int64_t tokens : {32, 64, 128}) {
    const quant::Encoded part = codec->encode(x.narrow(1, 0, tokens), {});
    CHECK(at::equal(part.codes, whole.codes.narrow(1, 0, tokens)));
    CHECK(at::equal(part.params, whole.params.narrow(1, 0, part.params.size(1))));
  }
}

TEST_CASE("the codec counts what leaves the codes by head", "[uniform]") {
  at::Tensor x = at::zeros({2, 1, 8}, at::kFloat);
  x[0][0] = at::tensor({1.f, -2.f, 3.f, 4.f, -40.f, 5.f, 6.f, 7.f});
  x[1][0] = at::tensor({0.f, 1.f, 2.f, 3.f, 3.f, 3.f, 3.f, 3.f});
  const auto codec = make_codec(plain::uniform({{"clip", 0.75}, {"group", 8}, {"bits", 1}}), 8);
  CHECK(at::equal(codec->encode(x, {}).saturated, at::tensor({1, 0}, at::kLong)));
}

TEST_CASE("an unknown kind of codec is refused by name", "[uniform]") {
  CHECK_THROWS_WITH(make_codec({{"kind", "vector"}}, 64), ContainsSubstring("'vector'"));
}
