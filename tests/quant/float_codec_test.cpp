#include <vector>

#include "catch.h"
#include "method/schema.h"
#include "quant/codec.h"
#include "quant/plain_codec.h"

using namespace kvlab;

namespace {

Settings floats(const Settings& changes) {
  Settings all = below(method::default_settings(), "key.codec.");
  all["kind"] = "float";
  for (const auto& [key, value] : changes) all[key] = value;
  return all;
}

struct Row {
  std::vector<float> values;
  quant::Encoded encoded;
};

Row row(const std::vector<float>& x, const Settings& changes) {
  const auto d = static_cast<int64_t>(x.size());
  const auto codec = quant::make_codec(floats(changes), d);
  Row result;
  result.encoded = codec->encode(at::tensor(x).reshape({1, 1, d}), {});
  const at::Tensor decoded = codec->decode(result.encoded).contiguous();
  result.values = {decoded.const_data_ptr<float>(), decoded.const_data_ptr<float>() + d};
  return result;
}

}  // namespace

TEST_CASE("E4M3 without a scale rounds to even and saturates", "[float]") {
  // Between 16 and 32 numbers are 2 apart: 17 and 19 are ties. The smallest is 2^-9.
  const Row r = row({17.0f, 19.0f, 500.0f, -1e9f, 0.001953125f, 0.0009f, -0.0f, 1.0f},
                    {{"format", "e4m3"}, {"scale", "none"}});
  CHECK(r.values ==
        std::vector<float>{16.0f, 20.0f, 448.0f, -448.0f, 0.001953125f, 0.0f, 0.0f, 1.0f});
  CHECK(r.encoded.saturated.item<int64_t>() == 2);
  CHECK(r.encoded.code_bytes() == 8);
  CHECK(r.encoded.param_bytes() == 0);
}

TEST_CASE("E2M1 has eight magnitudes and rounds ties to even", "[float]") {
  const std::vector<float> x = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f, 6.0f,
                                -0.3f, -6.0f, 0.0f,  1.0f,  2.0f, 3.0f, 4.0f, 0.5f};
  const Row r = row(x, {{"format", "e2m1"}, {"scale", "e8m0"}, {"group", 16}});
  // max is 6, so the scale is 2^(2 − 2) = 1.
  CHECK(r.values == std::vector<float>{0.0f, 1.0f, 1.0f, 2.0f, 2.0f, 4.0f, 4.0f, 6.0f, -0.5f, -6.0f,
                                       0.0f, 1.0f, 2.0f, 3.0f, 4.0f, 0.5f});
  CHECK(r.encoded.code_bytes() == 8);
  CHECK(r.encoded.param_bytes() == 1);
}

TEST_CASE("block scales", "[float]") {
  // 7.9 has exponent 2, like 6: the scale stays 1 and 7.9 saturates; 8 doubles it.
  const std::vector<float> ones(15, 1.0f);
  auto with = [&](float largest) {
    std::vector<float> x = ones;
    x.push_back(largest);
    return x;
  };
  const Settings mx = {{"format", "e2m1"}, {"scale", "e8m0"}, {"group", 16}};
  CHECK(row(with(7.9f), mx).values.back() == 6.0f);
  CHECK(row(with(7.9f), mx).encoded.saturated.item<int64_t>() == 1);
  CHECK(row(with(8.0f), mx).values.back() == 8.0f);
  CHECK(row(with(1e-30f), mx).values.front() == 1.0f);
  // E4M3 scales: 12/6 = 2 is exact, and so is 12.
  const Settings nv = {{"format", "e2m1"}, {"scale", "e4m3"}, {"group", 16}};
  CHECK(row(with(12.0f), nv).values.back() == 12.0f);
  CHECK(row(with(12.0f), nv).encoded.param_bytes() == 1);
  // A scale that rounds to 0 leaves zeros; zeros stay zeros; infinity of a scale does not occur.
  CHECK(row(std::vector<float>(16, 1e-5f), nv).values.front() == 0.0f);
  CHECK(row(std::vector<float>(16, 0.0f), mx).values.front() == 0.0f);
  CHECK(row(std::vector<float>(16, 1e6f), nv).values.front() == 448.0f * 6.0f);
  for (const char* type : {"fp16", "fp32"}) {
    const Settings scaled = {{"format", "e4m3"}, {"scale", type}, {"group", 16}};
    CHECK(row(with(448.0f), scaled).values.back() == 448.0f);
    CHECK(row(with(0.00448f), scaled).values.front() == Approx(1.0).epsilon(1e-3));
  }
}

TEST_CASE("finer formats have smaller errors", "[float]") {
  const at::Tensor x = plain::gaussian({1, 500, 64}, 31);
  const auto nmse = [&](const Settings& changes) {
    const auto codec = quant::make_codec(floats(changes), 64);
    const at::Tensor decoded = codec->decode(codec->encode(x, {}));
    return ((decoded - x).square().sum() / x.square().sum()).item<double>();
  };
  const double e4m3 = nmse({{"format", "e4m3"}, {"scale", "none"}});
  const double e5m2 = nmse({{"format", "e5m2"}, {"scale", "none"}});
  const double mx = nmse({{"format", "e2m1"}, {"scale", "e8m0"}, {"group", 32}});
  const double nv = nmse({{"format", "e2m1"}, {"scale", "e4m3"}, {"group", 16}});
  CHECK(e4m3 < 1e-3);
  CHECK(e5m2 > 3 * e4m3);
  CHECK(mx > nv);
  CHECK(nv > e5m2);
  CHECK(mx < 0.03);
}

TEST_CASE("codes of eight bits fill bytes at any head dimension, those of four at even ones",
          "[float]") {
  const auto why = [](const char* format, int64_t d) {
    Settings side = {{"codec.kind", "float"}};
    for (const auto& [key, value] : floats({{"format", format}})) side["codec." + key] = value;
    return method::selected(side, "codec").refuse(side, d).value_or("");
  };
  CHECK(why("e4m3", 13).empty());
  CHECK(why("e5m2", 13).empty());
  CHECK(why("e2m1", 14).empty());
  CHECK(why("e2m1", 13) == "13 codes of 4 bits do not fill whole bytes");
  CHECK(row({17.0f, 1.0f, -2.0f}, {{"format", "e4m3"}, {"scale", "none"}}).values ==
        std::vector<float>{16.0f, 1.0f, -2.0f});
}
