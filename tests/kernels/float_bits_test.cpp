#include "kvlab/kernels/float_bits.h"

#include <cfloat>
#include <cmath>
#include <limits>
#include <random>

#include "catch.h"

namespace kn = kvlab::kernels;

namespace {

/// Rounded to so many significant bits, by the spacing of the type's numbers; not limited.
float rounded(float x, int significant, int smallest) {
  if (x == 0 || std::isinf(x)) return x;
  int exponent = 0;
  std::frexp(x, &exponent);
  const double spacing = std::ldexp(1.0, std::max(exponent - significant, smallest));
  return static_cast<float>(std::nearbyint(x / spacing) * spacing);
}

void check_rounding(float x) {
  CAPTURE(x);
  const float half = rounded(x, 11, -24);
  REQUIRE(kn::from_f16(kn::to_f16(x)) ==
          (std::fabs(half) > 65504.0f ? std::copysign(INFINITY, x) : half));
  const double wide = rounded(x, 8, -133);
  const float bf = static_cast<float>(wide);
  REQUIRE(kn::from_bf16(kn::to_bf16(x)) == bf);
}

}  // namespace

TEST_CASE("all halves come back from float32", "[kernels]") {
  for (int bits = 0; bits < 65536; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    const int exponent = bits >> 10 & 31;
    const int fraction = bits & 1023;
    const float x = kn::from_f16(half);
    CAPTURE(bits);
    if (exponent == 31 && fraction != 0) {
      REQUIRE(std::isnan(x));
      REQUIRE(std::isnan(kn::from_f16(kn::to_f16(x))));
      continue;
    }
    const double size = exponent == 31  ? INFINITY
                        : exponent == 0 ? std::ldexp(fraction, -24)
                                        : std::ldexp(1024 + fraction, exponent - 25);
    REQUIRE(static_cast<double>(x) == ((bits & 0x8000) != 0 ? -size : size));
    REQUIRE(std::signbit(x) == ((bits & 0x8000) != 0));
    REQUIRE(kn::to_f16(x) == half);
  }
}

TEST_CASE("all bfloat16 come back from float32", "[kernels]") {
  for (int bits = 0; bits < 65536; ++bits) {
    const float x = kn::from_bf16(static_cast<std::uint16_t>(bits));
    if (std::isnan(x)) {
      REQUIRE(std::isnan(kn::from_bf16(kn::to_bf16(x))));
    } else {
      REQUIRE(kn::to_bf16(x) == bits);
    }
  }
}

TEST_CASE("float32 is rounded to nearest, ties to even", "[kernels]") {
  // Every half's neighbourhood: the middle to the next, and a float to both sides of it.
  for (int bits = 0; bits < 0x7bff; ++bits) {
    const float low = kn::from_f16(static_cast<std::uint16_t>(bits));
    const float high = kn::from_f16(static_cast<std::uint16_t>(bits + 1));
    const float middle = low + (high - low) / 2;
    for (const float x : {middle, std::nextafter(middle, 0.0f), std::nextafter(middle, INFINITY)}) {
      check_rounding(x);
      check_rounding(-x);
    }
  }
  std::mt19937 engine(3);
  for (int i = 0; i < 200000; ++i) {
    const float x = kn::float_of(static_cast<std::uint32_t>(engine()));
    if (!std::isnan(x) && std::fabs(x) < 3.38e38f) check_rounding(x);
  }
  for (const float x :
       {0.0f, -0.0f, FLT_MIN, FLT_TRUE_MIN, 65504.0f, 65519.9f, 65520.0f, 65536.0f, 1e30f}) {
    check_rounding(x);
    check_rounding(-x);
  }
}

TEST_CASE("D04 beyond a type's range a number becomes the largest", "[kernels]") {
  CHECK(kn::round_to(1.25e5f, kn::Type::f16) == 65504.0f);
  CHECK(kn::round_to(-INFINITY, kn::Type::f16) == -65504.0f);
  CHECK(kn::round_to(FLT_MAX, kn::Type::bf16) == kn::largest(kn::Type::bf16));
  CHECK(kn::round_to(INFINITY, kn::Type::f32) == FLT_MAX);
  CHECK(std::isnan(kn::round_to(NAN, kn::Type::f16)));
}
