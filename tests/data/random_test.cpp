#include <array>
#include <cmath>
#include <cstdint>
#include <vector>

#include "catch.h"
#include "data/draws.h"
#include "data/exact_math.h"
#include "data/philox.h"

using namespace kvlab::data;

TEST_CASE("data: philox4x32-10 gives Random123's published vectors", "[data]") {
  using Block = std::array<uint32_t, 4>;
  CHECK(philox4x32({0, 0, 0, 0}, {0, 0}) == Block{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  CHECK(philox4x32({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}) ==
        Block{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}) ==
        Block{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("data: own log, exp and cosine agree with the C library", "[data]") {
  for (double x = 1e-12; x < 1e12; x *= 1.37) {
    CHECK(exact_log(x) == Approx(std::log(x)).epsilon(1e-14));
  }
  CHECK(exact_log(1.0) == 0.0);
  for (double x = -700.0; x <= 700.0; x += 3.77) {
    CHECK(exact_exp(x) == Approx(std::exp(x)).epsilon(1e-13));
  }
  CHECK(exact_exp(0.0) == 1.0);
  for (double turns = -3.0; turns <= 3.0; turns += 0.0173) {
    CHECK(exact_cos_turns(turns) == Approx(std::cos(2 * M_PI * turns)).margin(1e-14));
  }
  CHECK(exact_cos_turns(0.5) == -1.0);
  CHECK(std::fabs(exact_cos_turns(16777216.25)) < 1e-13);
}

TEST_CASE("data: the inverse normal is exact to 1e-12 over its whole domain", "[data]") {
  // Φ from erfc, whose own error is near 1e-16; dx = dp / φ(x), here relative to x.
  const auto error = [](double p) {
    const double x = inverse_normal(p);
    const double density = std::exp(-x * x / 2) / std::sqrt(2 * M_PI);
    const double back = 0.5 * std::erfc(-x / std::sqrt(2.0));
    return std::fabs((back - p) / density) / std::max(1e-3, std::fabs(x));
  };
  double worst = 0.0;
  for (double p = std::ldexp(1.0, -33); p < 0.5; p *= 1.01) worst = std::max(worst, error(p));
  for (double p = 0.5; p < 0.97; p += 0.003) worst = std::max(worst, error(p));
  CHECK(worst < 1e-12);
  CHECK(inverse_normal(0.5) == 0.0);
  CHECK(inverse_normal(0.975) == Approx(1.959963984540054).epsilon(1e-14));
  const auto normal_from = [](uint32_t word) {
    double x = 0.0;
    normals_from(&word, 1, &x);
    return x;
  };
  CHECK(normal_from(0) == Approx(-6.33777).epsilon(1e-4));
  for (const uint32_t word : {0u, 1u, 77u, 1u << 20, 1u << 31}) {
    CHECK(normal_from(word) == -normal_from(~word));
  }
}

TEST_CASE("data: many normals at once are those of one at a time, to the last bit", "[data]") {
  std::vector<uint32_t> words = {0, ~0u, 1u << 31};
  for (uint32_t i = 1; words.size() < 1000; ++i) words.push_back(i * 2654435761u);
  for (const int64_t count : {1, 15, 64, 65, 1000}) {
    std::vector<double> many(static_cast<size_t>(count) + 1, 7.0);
    normals_from(words.data(), count, many.data());
    for (int64_t i = 0; i < count; ++i) {
      CHECK(many[i] == inverse_normal((static_cast<double>(words[i]) + 0.5) / 4294967296.0));
    }
    CHECK(many.back() == 7.0);
  }
}

TEST_CASE("data: draws have the moments of a normal distribution", "[data]") {
  const int64_t rows = 2000, columns = 100;
  std::vector<double> x(rows * columns);
  const Draws draws(1, 0);
  for (int64_t r = 0; r < rows; ++r) {
    draws.normals(Stream::key, static_cast<uint64_t>(r), columns, &x[r * columns]);
  }
  std::array<double, 5> moment{};
  for (const double value : x) {
    for (int power = 1; power < 5; ++power) moment[power] += std::pow(value, power);
  }
  const double n = static_cast<double>(x.size());
  // Five standard errors each.
  CHECK(std::fabs(moment[1] / n) < 5 / std::sqrt(n));
  CHECK(std::fabs(moment[2] / n - 1) < 5 * std::sqrt(2 / n));
  CHECK(std::fabs(moment[3] / n) < 5 * std::sqrt(15 / n));
  CHECK(std::fabs(moment[4] / n - 3) < 5 * std::sqrt(96 / n));
}

TEST_CASE("data: seed, passage, stream, row and column each give other numbers", "[data]") {
  const auto first = [](int64_t seed, int64_t passage, Stream stream, uint64_t row) {
    return Draws(seed, passage).normal(stream, row);
  };
  const double base = first(1, 2, Stream::key, 3);
  CHECK(base == first(1, 2, Stream::key, 3));
  CHECK(base != first(1 + (int64_t{1} << 40), 2, Stream::key, 3));
  CHECK(base != first(2, 2, Stream::key, 3));
  CHECK(base != first(1, 3, Stream::key, 3));
  CHECK(base != first(1, 2, Stream::value, 3));
  CHECK(base != first(1, 2, Stream::key, 4));
  CHECK(base != first(1, 2, Stream::key, 3 + (uint64_t{1} << 45)));
  std::vector<double> row(9);
  Draws(1, 2).normals(Stream::key, 3, 9, row.data());
  CHECK(row[0] == base);
  CHECK(row[8] != row[4]);
}
