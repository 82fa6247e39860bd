#include "quant/vector_codebook.h"

#include "base/error.h"
#include "catch.h"
#include "method/schema.h"
#include "quant/codec.h"
#include "quant/plain_codec.h"

using namespace kvlab;

namespace {

Settings vectors(const Settings& changes = {}) {
  Settings all = below(method::default_settings(), "key.codec.");
  all["kind"] = "vector_codebook";
  all["codebook_stride"] = 1;
  all["codebook_params"] = "fp32";
  for (const auto& [key, value] : changes) all[key] = value;
  return all;
}

double nmse(const Settings& codec, const at::Tensor& calibration, const at::Tensor& x) {
  const auto made = quant::make_codec(codec, x.size(2));
  const at::Tensor shared = quant::learn_vector_codebook(codec, calibration, {});
  const at::Tensor decoded = made->decode(made->encode(x, shared));
  return ((decoded - x).square().sum() / x.square().sum()).item<double>();
}

}  // namespace

TEST_CASE("vectors of channels are the nearest entries of codebooks", "[vector_codebook]") {
  // Two vectors of two channels: stratified, channels 0 and 2, and 1 and 3.
  const Settings codec = vectors({{"width", 2}, {"entries", 2}, {"params", "fp32"}});
  const at::Tensor books =
      at::tensor({1.0f, 1.0f, -1.0f, -1.0f, 1.0f, -1.0f, -1.0f, 1.0f}).reshape({1, 2, 2, 2});
  const at::Tensor x = at::tensor({2.0f, -2.0f, 2.0f, 2.0f}).reshape({1, 1, 4});
  const auto made = quant::make_codec(codec, 4);
  const quant::Encoded encoded = made->encode(x, books);
  CHECK(encoded.codes.flatten().to(at::kLong).equal(at::tensor({0, 1}, at::kLong)));
  CHECK(encoded.params.item<float>() == 2.0f);  // root mean square
  CHECK(made->decode(encoded).equal(x));
  CHECK(encoded.code_bytes() == 2);
  CHECK(encoded.param_bytes() == 4);
  const auto adjacent = quant::make_codec(
      vectors({{"width", 2}, {"entries", 2}, {"params", "fp32"}, {"vectors", "adjacent"}}), 4);
  CHECK_FALSE(adjacent->decode(adjacent->encode(x, books)).equal(x));
  CHECK_THROWS_WITH(made->encode(x, {}), ContainsSubstring("codebook"));
}

TEST_CASE("learned codebooks fit, better with more entries and the right vectors",
          "[vector_codebook]") {
  // Channels r and r + 2 go together.
  const auto sample = [](uint64_t seed) {
    const at::Tensor x = plain::gaussian({2, 1500, 2}, seed);
    return at::cat({x, x * 0.5 + plain::gaussian({2, 1500, 2}, seed + 50) * 0.05}, 2);
  };
  const at::Tensor calibration = sample(22), x = sample(23);
  const Settings fine = vectors({{"width", 2}, {"entries", 64}});
  const double error = nmse(fine, calibration, x);
  CHECK(error < 0.03);
  CHECK(nmse(vectors({{"width", 2}, {"entries", 8}}), calibration, x) > 2 * error);
  CHECK(nmse(vectors({{"width", 2}, {"entries", 64}, {"vectors", "adjacent"}}), calibration, x) >
        1.2 * error);
  CHECK(nmse(vectors({{"width", 2}, {"entries", 64}, {"codebook_params", "fp8_e5m2"}}), calibration,
             x) > error);
  CHECK_THROWS_AS(quant::learn_vector_codebook(vectors(), calibration.narrow(1, 0, 100), {}),
                  Unsupported);
}

TEST_CASE("a row of zeros stays zeros", "[vector_codebook]") {
  const Settings codec = vectors({{"width", 2}, {"entries", 2}});
  const at::Tensor books = at::ones({1, 2, 2, 2});
  const auto made = quant::make_codec(codec, 4);
  CHECK(made->decode(made->encode(at::zeros({1, 3, 4}), books)).abs().max().item<float>() == 0.0f);
}
