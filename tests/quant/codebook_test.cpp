#include <cmath>

#include "catch.h"
#include "method/schema.h"
#include "quant/codec.h"
#include "quant/gaussian_levels.h"
#include "quant/packing.h"
#include "quant/plain_codec.h"

using namespace kvlab;

namespace {

/// All settings of a codec of that kind, with changes.
Settings settings(const std::string& kind, const Settings& changes) {
  Settings all = below(method::default_settings(), "key.codec.");
  all["kind"] = kind;
  for (const auto& [key, value] : changes) all[key] = value;
  return all;
}

at::Tensor through(const Settings& codec, const at::Tensor& x, const at::Tensor& shared = {}) {
  const auto made = quant::make_codec(codec, x.size(2));
  return made->decode(made->encode(x, shared));
}

double nmse(const at::Tensor& decoded, const at::Tensor& x) {
  return ((decoded.to(at::kDouble) - x).square().sum() / x.to(at::kDouble).square().sum())
      .item<double>();
}

at::Tensor orthogonal(int64_t d, uint64_t seed) {
  return std::get<0>(at::linalg_qr(plain::gaussian({d, d}, seed).to(at::kDouble)));
}

}  // namespace

TEST_CASE("levels are Lloyd's and Max's for a normal", "[codebook]") {
  const std::vector<double> one = quant::gaussian_levels(1);
  CHECK(one[1] == Approx(std::sqrt(2.0 / M_PI)).epsilon(1e-12));
  // Max, IRE Trans. Inf. Theory 6 (1960), table I.
  const std::vector<double> two = quant::gaussian_levels(2);
  CHECK(two[2] == Approx(0.4528).margin(5e-5));
  CHECK(two[3] == Approx(1.510).margin(5e-4));
  CHECK(two[0] == -two[3]);
  const std::vector<double> three = quant::gaussian_levels(3);
  CHECK(three[4] == Approx(0.2451).margin(5e-5));
  CHECK(three[7] == Approx(2.152).margin(5e-4));
  CHECK(quant::levels_from("-1, 0,2.5 ", 2) == std::vector<double>{-1.0, 0.0, 2.5});
  for (const char* wrong : {"", "1,", "2, 1", "a", "1, b", "nan"}) {
    CAPTURE(wrong);
    CHECK(quant::levels_from(wrong, 2).empty());
  }
}

TEST_CASE("a codebook of normal rows has the error of its levels", "[codebook]") {
  const at::Tensor x = plain::gaussian({1, 2000, 128}, 3);
  // methods.md 0.2: 0.1175 at two bits. Rows of 128 are unit vectors, not quite normals.
  CHECK(nmse(through(settings("codebook", {{"bits", 2}}), x), x) == Approx(0.1175).epsilon(0.02));
  CHECK(nmse(through(settings("codebook", {{"bits", 3}}), x), x) == Approx(0.03454).epsilon(0.03));
  const Settings standardized = settings("codebook", {{"normalize", "mean_deviation"}});
  CHECK(nmse(through(standardized, x + 5.0), x + 5.0) < 0.1175 / 26 * 1.05);

  // Evenly spaced levels: the published ratio costs 26 percent more than the levels themselves, the
  // best step 1.2 percent (methods.md 7.3).
  const auto even = [&](double ratio) {
    return nmse(
        through(settings("codebook", {{"normalize", "mean_deviation"}, {"ratio", ratio}}), x), x);
  };
  const double exact = nmse(through(standardized, x), x);
  CHECK(even(1.16) / exact == Approx(1.26).margin(0.03));
  CHECK(even(0.98149) / exact == Approx(1.012).margin(0.006));
}

TEST_CASE("a row of a codebook by hand", "[codebook]") {
  // Norm 4 over eight channels: unit coordinates are √8/4 times these.
  const at::Tensor x =
      at::tensor({2.0f, -2.0f, 2.0f, -2.0f, 0.0f, 0.0f, 0.0f, 0.0f}).reshape({1, 1, 8});
  const Settings codec = settings("codebook", {{"levels", "-1.5, -0.5, 0.5, 1.5"}, {"group", 8}});
  const auto made = quant::make_codec(codec, 8);
  const quant::Encoded encoded = made->encode(x, {});
  // ±1.414 is nearest ±1.5; 0 is a tie, which is the lower level.
  CHECK(quant::unpack(encoded.codes, 2)
            .to(at::kLong)
            .flatten()
            .equal(at::tensor({3, 0, 3, 0, 1, 1, 1, 1}, at::kLong)));
  CHECK(encoded.params.item<float>() == 4.0f);
  CHECK(encoded.code_bytes() == 2);
  CHECK(encoded.param_bytes() == 2);
  CHECK(made->shared_bytes() == 16);
  const at::Tensor decoded = made->decode(encoded).flatten();
  CHECK(decoded[0].item<float>() == Approx(1.5 * 4 / std::sqrt(8.0)));
  CHECK(decoded[4].item<float>() == Approx(-0.5 * 4 / std::sqrt(8.0)));
  // The corrected row has the norm that is stored.
  const at::Tensor corrected = through(
      settings("codebook",
               {{"levels", "-1.5, -0.5, 0.5, 1.5"}, {"group", 8}, {"norm_correction", true}}),
      x);
  CHECK(corrected.norm().item<float>() == Approx(4.0));
  CHECK(decoded.norm().item<float>() != Approx(4.0).epsilon(0.01));
}

TEST_CASE("rows without a direction stay what they are", "[codebook]") {
  const at::Tensor zero = at::zeros({1, 2, 16});
  for (const char* kind : {"codebook", "sketched_codebook"}) {
    const at::Tensor sketch = orthogonal(16, 1).unsqueeze(0);
    CHECK(through(settings(kind, {{"norm_correction", true}}), zero, sketch)
              .abs()
              .max()
              .item<float>() == 0.0f);
  }
  for (const float value : {0.0f, 9.0f, -70.0f, 1e-6f}) {
    CAPTURE(value);
    const at::Tensor flat = at::full({1, 1, 16}, value);
    for (const nlohmann::json& ratio : {nlohmann::json("none"), nlohmann::json(1.16)}) {
      const Settings codec =
          settings("codebook", {{"normalize", "mean_deviation"}, {"ratio", ratio}});
      CHECK((through(codec, flat) - flat).abs().max().item<float>() <=
            std::fabs(value) * 1e-3f + 1.1e-4f);
    }
  }
}

TEST_CASE("two parts of a row have widths and norms of their own", "[codebook]") {
  at::Tensor x = plain::gaussian({2, 300, 64}, 5);
  x.narrow(2, 0, 32).mul_(20.0);
  const Settings split = settings("codebook", {{"high_share", 0.5}, {"high_bits", 3}});
  const auto made = quant::make_codec(split, 64);
  const quant::Encoded encoded = made->encode(x, {});
  CHECK(encoded.code_bytes() == 2 * 300 * (32 * 3 + 32 * 2) / 8);
  CHECK(encoded.param_bytes() == 2 * 300 * 2 * 2);
  const at::Tensor decoded = made->decode(encoded);
  CHECK(nmse(decoded.narrow(2, 0, 32), x.narrow(2, 0, 32)) < 0.045);
  CHECK(nmse(decoded.narrow(2, 32, 32), x.narrow(2, 32, 32)) == Approx(0.117).epsilon(0.05));
  CHECK(method::selected({{"codec.kind", "codebook"}}, "codec")
            .refuse({{"codec.kind", "codebook"},
                     {"codec.high_share", 0.5},
                     {"codec.high_bits", 3},
                     {"codec.bits", 2},
                     {"codec.levels", "1, 2, 3"},
                     {"codec.high_levels", "gaussian"}},
                    64)
            .value()
            .find("4 ascending numbers") != std::string::npos);
}

TEST_CASE("a sketch of the residual makes inner products unbiased", "[codebook]") {
  const at::Tensor x = plain::gaussian({1, 400, 64}, 7);
  const at::Tensor q = plain::gaussian({1, 400, 64}, 8);
  const Settings codec = settings("sketched_codebook", {{"bits", 2}, {"norm_params", "fp32"}});
  const auto made = quant::make_codec(codec, 64);
  CHECK_THROWS_WITH(made->encode(x, {}), ContainsSubstring("sketch"));
  const quant::Encoded one = made->encode(x, orthogonal(64, 9).unsqueeze(0));
  CHECK(one.code_bytes() == 400 * (64 / 8 + 64 / 8 + 4));  // codes, signs, residual norms
  CHECK(one.param_bytes() == 400 * 4);

  // The mean over matrices of the estimate comes near the value itself, unlike the codebook alone,
  // which shrinks it.
  at::Tensor mean = at::zeros_like(x);
  constexpr int kMatrices = 60;
  for (int i = 0; i < kMatrices; ++i) {
    mean += through(codec, x, orthogonal(64, 100 + static_cast<uint64_t>(i)).unsqueeze(0));
  }
  mean /= kMatrices;
  const auto slope = [&](const at::Tensor& decoded) {
    return ((decoded * x).sum() / x.square().sum()).item<double>();
  };
  CHECK(slope(mean) == Approx(1.0).margin(0.01));
  CHECK(slope(through(settings("codebook", {{"bits", 1}}), x)) < 0.7);
  CHECK(nmse(mean, x) < 0.05);
}
