// Switches to what single published codes do otherwise; the codes' own data are in tests/peers.
#include "catch.h"
#include "method/schema.h"
#include "quant/codec.h"
#include "quant/packing.h"
#include "quant/plain_codec.h"
#include "quant/uniform.h"

using namespace kvlab;

namespace {

struct Out {
  at::Tensor codes, values, params;
};

Out row(const std::vector<float>& x, Settings changes) {
  const auto d = static_cast<int64_t>(x.size());
  changes.emplace("group", d);
  const Settings settings = plain::uniform(changes);
  const auto codec = quant::make_codec(settings, d);
  const quant::Encoded encoded = codec->encode(at::tensor(x).reshape({1, 1, d}), {});
  return {quant::unpack(encoded.codes, get_int(settings, "bits")).to(at::kLong).flatten(),
          codec->decode(encoded).flatten(), encoded.params.to(at::kFloat).flatten()};
}

}  // namespace

TEST_CASE("a range may be widened to hold zero", "[uniform]") {
  const Out plain = row({3, 4, 5, 6}, {{"grid", "rounded_zero"}});
  const Out wide = row({3, 4, 5, 6}, {{"grid", "rounded_zero"}, {"hold_zero", true}});
  CHECK(plain.params.equal(at::tensor({1.0f, -3.0f})));
  CHECK(wide.params.equal(at::tensor({2.0f, 0.0f})));
  CHECK(wide.values.equal(at::tensor({4.0f, 4.0f, 4.0f, 6.0f})));  // 1.5 and 2.5 are ties
}

TEST_CASE("a least range keeps a flat group on the grid", "[uniform]") {
  const Out out = row({2, 2, 2, 2}, {{"least_range", 3.0}});
  CHECK(out.params.equal(at::tensor({1.0f, 2.0f})));
  CHECK(out.values.equal(at::full({4}, 2.0f)));
  CHECK(row({0, 1, 2, 9}, {{"least_range", 3.0}}).params.equal(at::tensor({3.0f, 0.0f})));
}

TEST_CASE("an all-zero group may take a range of its own", "[uniform]") {
  const Out out = row({0, 0, 0, 0}, {{"grid", "rounded_zero"}, {"zero_group", "unit_range"}});
  CHECK(out.params[0].item<float>() == 2.0f / 3.0f);
  CHECK(out.params[1].item<float>() == 2.0f);  // 1.5 to even
  CHECK(out.codes.equal(at::full({4}, 2, at::kLong)));
  CHECK(out.values.equal(at::zeros({4})));
  CHECK(row({0, 0, 0, 0}, {{"grid", "rounded_zero"}}).params[0].item<float>() == 1.0f);
}

TEST_CASE("bisection ends at or above the order statistic", "[uniform]") {
  const at::Tensor x = plain::gaussian({2, 50, 64}, 3);
  const at::Tensor exact = quant::order_threshold(x, 0.96);
  const at::Tensor found = quant::bisected_threshold(x, 0.96);
  const at::Tensor step = x.abs().amax(-1, true) / 64.0;
  // int(0.96·64) = 61 values lie at or below it, and fewer a step lower.
  CHECK(x.abs().le(found).sum(-1).ge(61).all().item<bool>());
  CHECK(x.abs().le(found - step * 1.001).sum(-1).lt(61).all().item<bool>());
  CHECK(found.le(exact + step).all().item<bool>());
  // By hand: max 16, four halvings of 16 elements; 12 of them must be covered.
  at::Tensor ramp = at::arange(1, 17, at::kFloat).reshape({1, 1, 16});
  CHECK(quant::bisected_threshold(ramp, 0.75).item<float>() == 12.0f);
}

TEST_CASE("arithmetic may be that of a 16-bit type", "[uniform]") {
  // 1/3 is rounded to bfloat16 before it is stored in float32, and so is every quotient.
  const Out exact = row({0.0f, 0.3f, 0.7f, 1.0f}, {});
  const Out coarse = row({0.0f, 0.3f, 0.7f, 1.0f}, {{"arithmetic", "bf16"}});
  CHECK(exact.params[0].item<float>() == 1.0f / 3.0f);
  CHECK(coarse.params[0].item<float>() == 0.333984375f);
  const Out decoded = row({0.0f, 0.3f, 0.7f, 1.0f}, {{"decode_arithmetic", "bf16"}});
  CHECK(decoded.codes.equal(exact.codes));
  CHECK(decoded.values[2].item<float>() == 0.66796875f);  // 2/3 in bfloat16
}

TEST_CASE("codes may follow from the scale before it is rounded", "[uniform]") {
  // −lo/s is 0.5 exactly of the exact scale, less of the rounded one.
  const at::Tensor x = plain::gaussian({1, 400, 32}, 9);
  const auto codes = [&](const char* from) {
    const auto codec = quant::make_codec(
        plain::uniform({{"params", "bf16"}, {"zero", "code_offset"}, {"codes_from", from}}), 32);
    return codec->encode(x, {}).codes;
  };
  CHECK_FALSE(codes("exact").equal(codes("stored")));
  const auto exact = quant::make_codec(plain::uniform({{"zero", "code_offset"}}), 32);
  CHECK(codes("exact").equal(exact->encode(x, {}).codes));
}

TEST_CASE("row token: one group is a token's row of all heads") {
  Settings codec = below(method::default_settings(), "key.codec.");
  codec["row"] = "token";
  codec["group"] = 4;  // means nothing here
  const at::Tensor x = plain::gaussian({3, 20, 8}, 71);
  const auto whole = quant::make_codec(codec, 8);
  const quant::Encoded encoded = whole->encode(x, {});
  CHECK(encoded.params.sizes() == at::IntArrayRef({1, 20, 1, 2}));
  CHECK(encoded.code_bytes() == 3 * 20 * 8 * 2 / 8);
  CHECK(encoded.param_bytes() == 20 * 4);
  codec["row"] = "head";
  codec["group"] = 24;
  const auto one = quant::make_codec(codec, 24);
  const at::Tensor wide = x.transpose(0, 1).reshape({1, 20, 24});
  CHECK(whole->decode(encoded).equal(
      one->decode(one->encode(wide, {})).reshape({20, 3, 8}).transpose(0, 1)));
}
