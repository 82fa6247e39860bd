#include <cmath>
#include <limits>
#include <vector>

#include "catch.h"
#include "method/recipe.h"
#include "quant/codec.h"
#include "quant/packing.h"
#include "quant/plain_codec.h"
#include "quant/rounding.h"

using namespace kvlab;
using kvlab::quant::make_codec;

namespace {

using Values = std::vector<float>;

struct Row {
  std::vector<int64_t> codes;
  Values values, params;
  int64_t saturated = 0;
};

/// One token of one head, one group.
Row row(const Values& x, Settings changes) {
  const auto d = static_cast<int64_t>(x.size());
  changes.emplace("group", d);
  const Settings settings = plain::uniform(changes);
  const auto codec = make_codec(settings, d);
  const quant::Encoded encoded = codec->encode(at::tensor(x).reshape({1, 1, d}), {});
  const at::Tensor codes =
      quant::unpack(encoded.codes, get_int(settings, "bits")).to(at::kLong).contiguous();
  const at::Tensor values = codec->decode(encoded).contiguous();
  const at::Tensor params = encoded.params.to(at::kFloat).contiguous();
  return {{codes.const_data_ptr<int64_t>(), codes.const_data_ptr<int64_t>() + d},
          {values.const_data_ptr<float>(), values.const_data_ptr<float>() + d},
          {params.const_data_ptr<float>(), params.const_data_ptr<float>() + params.numel()},
          encoded.saturated.item<int64_t>()};
}

/// The four ways to place levels.
Settings grid_of(const std::string& name) {
  if (name == "code_offset") return {{"grid", "float_zero"}, {"zero", "code_offset"}};
  return {{"grid", name}};
}

Settings with(Settings settings, const Settings& more) {
  for (const auto& [key, value] : more) settings[key] = value;
  return settings;
}

at::Tensor as_captured(const at::Tensor& x, const std::string& dtype) {
  return x.to(dtype == "fp16" ? at::kHalf : at::kBFloat16).to(at::kFloat);
}

double mse(const at::Tensor& x, const Settings& settings) {
  const auto codec = make_codec(settings, x.size(2));
  const at::Tensor decoded = codec->decode(codec->encode(x, {}));
  return (decoded - x).to(at::kDouble).square().mean().item<double>();
}

const std::vector<std::string> kGrids = {"float_zero", "code_offset", "rounded_zero", "symmetric"};

}  // namespace

TEST_CASE("parameters round to their type, ties to even, and stop at its largest number",
          "[uniform]") {
  using quant::round_to;
  const at::Tensor x = at::tensor({1.0 / 3.0, 2049.0, 1e5, -1e5, 3e-8, 2e-8, 0.0}, at::kFloat);
  // fp16 has 11 significant bits and numbers down to 2^-24; 3e-8 lies above half of it, 2e-8 below.
  CHECK(at::equal(
      round_to(x, DType::fp16),
      at::tensor({0.333251953125, 2048.0, 65504.0, -65504.0, 0x1p-24, 0.0, 0.0}, at::kFloat)));
  CHECK(at::equal(round_to(at::tensor({1.0 / 3.0, 257.0, 259.0}, at::kFloat), DType::bf16),
                  at::tensor({0.333984375, 256.0, 260.0}, at::kFloat)));
  const float most = std::numeric_limits<float>::max();
  const float infinity = std::numeric_limits<float>::infinity();
  CHECK(round_to(at::tensor({most}), DType::bf16).item<float>() == 0x1.FEp127f);
  CHECK(round_to(at::tensor({infinity}), DType::fp32).item<float>() == most);
  CHECK(round_to(at::tensor({most}), DType::fp32).item<float>() == most);
}

TEST_CASE("D01 a constant group takes code 0 and comes back", "[uniform]") {
  const auto grid = GENERATE(from_range(kGrids));
  const auto axis = GENERATE(std::string("channel"), std::string("token"));
  const auto dtype = GENERATE(std::string("fp16"), std::string("bf16"));
  const auto params = GENERATE(std::string("fp16"), std::string("bf16"), std::string("fp32"));
  const Settings settings =
      plain::uniform(with(grid_of(grid), {{"axis", axis}, {"group", 32}, {"params", params}}));
  const auto codec = make_codec(settings, 128);
  for (const double value : {5.0, -5.0, 1e-4, 0.0, 65504.0}) {
    CAPTURE(grid, axis, dtype, params, value);
    const at::Tensor x = as_captured(at::full({1, 64, 128}, value, at::kFloat), dtype);
    const float captured = x[0][0][0].item<float>();
    const quant::Encoded encoded = codec->encode(x, {});
    const at::Tensor decoded = codec->decode(encoded);
    // bf16 rounds 65504 up to 65536, which fp16 parameters cannot hold.
    const float held = plain::round_to(captured, params);
    CHECK(decoded.eq(held).all().item<bool>());
    CHECK(std::fabs(held - captured) <= std::fabs(captured) * 0x1p-8f);
    if (grid != "symmetric") CHECK(encoded.codes.eq(0).all().item<bool>());
    CHECK(encoded.saturated.item<int64_t>() == 0);
  }
}

TEST_CASE("D01 a constant channel inside others is exact and leaves them alone", "[uniform]") {
  const auto grid = GENERATE(from_range(kGrids));
  const auto value = GENERATE(5.0, -5.0, 0.0, 65504.0);
  const auto codec = make_codec(
      plain::uniform(with(grid_of(grid), {{"axis", "channel"}, {"group", 32}, {"params", "fp16"}})),
      128);
  const at::Tensor x = plain::gaussian({1, 64, 128}, 40);
  const at::Tensor without = codec->decode(codec->encode(x, {}));
  x.select(2, 17).fill_(value);
  const at::Tensor decoded = codec->decode(codec->encode(x, {}));
  CHECK(decoded.select(2, 17).eq(value).all().item<bool>());
  CHECK(at::equal(decoded.narrow(2, 0, 17), without.narrow(2, 0, 17)));
  CHECK(at::equal(decoded.narrow(2, 18, 110), without.narrow(2, 18, 110)));
}

TEST_CASE("a flat group by hand, on every grid", "[uniform]") {
  CHECK(row({5, 5, 5, 5}, {}).params == Values{0, 5});
  CHECK(row({5, 5, 5, 5}, grid_of("code_offset")).params == Values{5, -1});
  CHECK(row({-5, -5, -5, -5}, grid_of("code_offset")).params == Values{5, 1});
  CHECK(row({5, 5, 5, 5}, grid_of("rounded_zero")).params == Values{5, -1});
  CHECK(row({-5, -5, -5, -5}, grid_of("rounded_zero")).params == Values{5, 1});
  CHECK(row({-5, -5, -5, -5}, grid_of("symmetric")).params == Values{5});
  // Zeros: a stored scale of 1 keeps decoding free of 0/0.
  CHECK(row({0, 0, 0, 0}, {}).params == Values{0, 0});
  CHECK(row({0, 0, 0, 0}, grid_of("code_offset")).params == Values{1, 0});
  CHECK(row({0, 0, 0, 0}, grid_of("rounded_zero")).params == Values{1, 0});
  CHECK(row({0, 0, 0, 0}, grid_of("symmetric")).params == Values{1});
}

TEST_CASE("no element of a flat float_zero group is saturated", "[uniform]") {
  // All but one element are 0: the clipped row is flat, the outlier lies far outside. The other
  // grids count it.
  const Values x = {0, 0, 0, 0, 0, 0, 0, 40};
  const auto clipped = [&](const std::string& grid) {
    return row(x, with(grid_of(grid), {{"clip", 0.5}, {"params", "fp16"}}));
  };
  for (const std::string& grid : kGrids) {
    CAPTURE(grid);
    CHECK(clipped(grid).values == Values(8, 0.0f));
  }
  CHECK(clipped("float_zero").saturated == 0);
  CHECK(clipped("code_offset").saturated == 0);
  CHECK(clipped("rounded_zero").saturated == 1);
  CHECK(clipped("symmetric").saturated == 1);
}

TEST_CASE("negative zero is zero", "[uniform]") {
  const auto grid = GENERATE(from_range(kGrids));
  for (const Values& x : {Values{-0.0f, -0.0f, -0.0f, -0.0f}, Values{-0.0f, 0.0f, -0.0f, 0.0f}}) {
    const Row flat = row(x, grid_of(grid));
    CHECK(flat.values == Values(4, 0.0f));
    CHECK(flat.saturated == 0);
  }
  const Row mixed = row({-0.0f, 3, 0.0f, -0.0f}, grid_of(grid));
  CHECK(mixed.values == Values{0, 3, 0, 0});
}

TEST_CASE("subnormal numbers keep their levels in fp32 and in fp16", "[uniform]") {
  const float least = std::numeric_limits<float>::denorm_min();
  for (const char* grid : {"float_zero", "rounded_zero"}) {
    const Row exact = row({0, least, 2 * least, 3 * least}, grid_of(grid));
    CHECK(exact.codes == std::vector<int64_t>{0, 1, 2, 3});
    CHECK(exact.values == Values{0, least, 2 * least, 3 * least});
    const float half = 0x1p-24f;
    const Row in_half =
        row({0, half, 2 * half, 3 * half}, with(grid_of(grid), {{"params", "fp16"}}));
    CHECK(in_half.values == Values{0, half, 2 * half, 3 * half});
  }
}

TEST_CASE("a scale that underflows makes a flat group", "[uniform]") {
  // The step 3e-9 rounds to 0 in fp16, and so do lo and hi: all become 0. In bf16 and fp32 the
  // levels are there.
  const Values x = {1e-9f, 4e-9f, 7e-9f, 1e-8f};
  for (const std::string& grid : kGrids) {
    CAPTURE(grid);
    const Row flat = row(x, with(grid_of(grid), {{"params", "fp16"}}));
    CHECK(flat.values == Values(4, 0.0f));
    CHECK(flat.params[0] == (grid == "float_zero" ? 0.0f : 1.0f));
  }
  CHECK(row(x, {{"params", "bf16"}}).codes == std::vector<int64_t>{0, 1, 2, 3});
  // Far from zero the lowest value is kept: 7 in fp16, 1 + 1e-7 between.
  const Values near = {7, 7.0000005f, 7, 7.000001f};
  for (const std::string& grid :
       {std::string("float_zero"), std::string("code_offset"), std::string("rounded_zero")}) {
    CAPTURE(grid);
    const Row held =
        row({7, 7 + 0x1p-20f, 7, 7}, with(grid_of(grid), {{"params", "fp16"}, {"bits", 8}}));
    CHECK(held.values == Values(4, 7.0f));
  }
  CHECK(row(near, {}).values[3] == Approx(7.000001f).margin(1e-7));
}

TEST_CASE("parameters beyond fp16 are limited before codes are chosen", "[uniform]") {
  // lo, hi = ∓65504: s = 131008/3 = 43669.3 → 43680 in fp16 (spacing 32).
  const Values x = {-1e5f, 0, 1e5f, 65504};
  const Row lowest = row(x, {{"params", "fp16"}});
  CHECK(lowest.params == Values{43680, -65504});
  CHECK(lowest.codes == std::vector<int64_t>{0, 1, 3, 3});  // −0.8, 1.4996, 3.8, 2.9993
  CHECK(lowest.values == Values{-65504, -21824, 65536, 65536});
  CHECK(lowest.saturated == 2);
  const Row integer = row(x, with(grid_of("rounded_zero"), {{"params", "fp16"}}));
  CHECK(integer.params == Values{43680, 1});
  CHECK(integer.codes ==
        std::vector<int64_t>{0, 1, 3, 2});  // −2 + 1, 0 + 1, 2 + 1, rint(1.4996) + 1
  CHECK(integer.saturated == 1);
  const Row symmetric = row(x, with(grid_of("symmetric"), {{"params", "fp16"}}));
  CHECK(symmetric.params == Values{65504});
  CHECK(symmetric.codes == std::vector<int64_t>{0, 1, 2, 2});
  CHECK(symmetric.saturated == 2);  // ±1e5/65504 = ±1.53 → ±2
  // −lo/s = −1.5e6 leaves fp16 although lo and s do not.
  const Row offset =
      row({60000, 60000.12f, 60000, 60000.12f}, with(grid_of("code_offset"), {{"params", "fp16"}}));
  CHECK(offset.params[1] == -65504.0f);
  for (const float value : offset.values) CHECK(std::isfinite(value));
}

TEST_CASE("parameters beyond bf16 are limited to its largest number", "[uniform]") {
  const float most = 0x1.FEp127f;
  const Row held = row({0, std::numeric_limits<float>::max(), 0, 0, 0, 0, 0, 0},
                       {{"params", "bf16"}, {"bits", 1}});
  CHECK(held.params == Values{most, 0});
  CHECK(held.values == Values{0, most, 0, 0, 0, 0, 0, 0});
}

TEST_CASE("D04 one huge value does not take its row to infinity", "[uniform]") {
  at::Tensor v = as_captured(plain::gaussian({1, 4, 128}, 41), "bf16");
  v[0][2][77] = -1.25e5f;
  at::Tensor limited = v.clone();
  limited[0][2][77] = -65504.0f;
  for (const std::string& grid : {std::string("float_zero"), std::string("rounded_zero")}) {
    CAPTURE(grid);
    const auto codec = make_codec(plain::uniform(with(grid_of(grid), {{"params", "fp16"}})), 128);
    const quant::Encoded huge = codec->encode(v, {});
    const quant::Encoded largest = codec->encode(limited, {});
    CHECK(codec->decode(huge).isfinite().all().item<bool>());
    CHECK(at::equal(huge.params, largest.params));
    CHECK(at::equal(huge.codes, largest.codes));
    CHECK(huge.saturated.item<int64_t>() == 1);
    CHECK(largest.saturated.item<int64_t>() == 0);
  }
}

TEST_CASE("D03 D12 codes are chosen from the parameters as stored", "[uniform]") {
  // N(100, 0.05): in bf16 the lowest value is off by up to 0.25, five deviations. Codes from exact
  // parameters, decoded with stored ones, would give 7.4e-4 (fp16) and 1.17e-2 (bf16).
  const at::Tensor x = plain::gaussian({1, 32, 16384}, 42) * 0.05 + 100.0;
  const auto [params, expected] =
      GENERATE(table<std::string, double>({{"fp32", 3.9e-4}, {"fp16", 4.0e-4}, {"bf16", 1.46e-3}}));
  const Settings settings =
      plain::uniform({{"axis", "channel"}, {"group", 32}, {"params", params}});
  CHECK(mse(x, settings) == Approx(expected).epsilon(0.05));

  const auto codec = make_codec(settings, 16384);
  const quant::Encoded encoded = codec->encode(x, {});
  const at::Tensor scale = encoded.params.to(at::kFloat).select(-1, 0);  // [1, 1, d]
  const at::Tensor lowest = encoded.params.to(at::kFloat).select(-1, 1);
  const at::Tensor again = ((x - lowest) / scale).round().clamp(0, 3).masked_fill(scale.eq(0), 0);
  CHECK(at::equal(quant::unpack(encoded.codes, 2).to(at::kFloat), again));
}

TEST_CASE("D16 a width that cannot be is refused with the value", "[uniform]") {
  method::Recipe recipe = method::preset("kivi");
  const auto wrong = method::apply_edit(recipe, "key.codec.bits", 9);
  REQUIRE(wrong);
  CHECK_THAT(*wrong, ContainsSubstring("9") && ContainsSubstring("key.codec.bits"));
  REQUIRE_FALSE(method::apply_edit(recipe, "key.codec.bits", 3));
  const auto unsupported = method::unsupported(recipe, 4);
  REQUIRE(unsupported);
  CHECK_THAT(*unsupported, ContainsSubstring("3 bits"));
}
