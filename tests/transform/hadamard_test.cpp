#include "transform/hadamard.h"

#include <ATen/ATen.h>

#include <bit>
#include <cmath>

#include "base/error.h"
#include "catch.h"
#include "method/recipe.h"
#include "quant/plain_codec.h"
#include "transform/transform.h"

using namespace kvlab;
using transform::hadamard_signs;
using transform::has_hadamard;

TEST_CASE("D37 a Hadamard rotation of every constructible size keeps norms and inverts",
          "[hadamard]") {
  const auto d =
      GENERATE(1, 2, 4, 8, 12, 16, 20, 24, 28, 36, 64, 72, 80, 96, 112, 128, 160, 192, 256, 512);
  CAPTURE(d);
  REQUIRE(has_hadamard(d));
  for (const int8_t sign : hadamard_signs(d)) CHECK(std::abs(sign) == 1);

  const at::Tensor h = transform::hadamard(d);
  const at::Tensor identity = at::eye(d, at::kDouble);
  CHECK((h.matmul(h.t()) - identity).abs().max().item<double>() <= 1e-12);
  const at::Tensor x = plain::gaussian({40, d}, 50).to(at::kDouble);
  const at::Tensor y = x.matmul(h);
  CHECK(at::allclose(y.norm(2, -1), x.norm(2, -1), 1e-12, 0));
  CHECK((y.matmul(h.t()) - x).abs().max().item<double>() <= 1e-12);
  if (d > 1) CHECK_FALSE(at::allclose(y, x, 1e-3, 1e-3));  // never a silent no-op
}

TEST_CASE("D37 a size without a construction is refused in a sentence", "[hadamard]") {
  // 100 = 4·25 and 92: no prime of Paley's kinds makes them; odd sizes and 6 have no Hadamard
  // matrix at all.
  for (const int64_t d : {0, 3, 6, 10, 50, 92, 100, 116}) {
    CAPTURE(d);
    CHECK_FALSE(has_hadamard(d));
    CHECK_THROWS_AS(hadamard_signs(d), Unsupported);
  }
  const auto reason = method::unsupported(method::preset("hadamard"), 100);
  REQUIRE(reason);
  CHECK_THAT(*reason, ContainsSubstring("no Hadamard matrix of size 100"));
}

TEST_CASE("powers of two are Sylvester's matrix", "[hadamard]") {
  const int64_t d = 64;
  const std::vector<int8_t> signs = hadamard_signs(d);
  for (int64_t i = 0; i < d; ++i) {
    for (int64_t j = 0; j < d; ++j) {
      const int expected = std::popcount(static_cast<uint64_t>(i & j)) % 2 == 0 ? 1 : -1;
      CHECK(signs[static_cast<size_t>(i * d + j)] == expected);
    }
  }
}

TEST_CASE("reversed bits", "[hadamard]") {
  CHECK(transform::reverse_bits(0b0011, 4) == 0b1100);
  CHECK(transform::reverse_bits(1, 7) == 64);
  CHECK(transform::reverse_bits(0b1101000, 7) == 0b0001011);
  for (int64_t i = 0; i < 128; ++i) {
    CHECK(transform::reverse_bits(transform::reverse_bits(i, 7), 7) == i);
  }
}
