#include "metrics/operations.h"

#include "catch.h"
#include "metrics/cases.h"

using namespace kvlab;
using cases::gaussian_sample;
using cases::recipe;
using cases::run;

namespace {

/// 2 KV heads of 32 channels, 4 query heads, 96 tokens of which 64 are read quantized.
double operations_of(const std::string& preset, const Settings& edits, const std::string& metric) {
  Settings all = {{"window.recent", 0}, {"window.flush", "block"}};
  for (const auto& [key, value] : edits) all[key] = value;
  return run(gaussian_sample({}, 1), recipe(preset, all), {"operations"})
             .metrics.at(metric)
             .item<double>() *
         1e6;
}

}  // namespace

TEST_CASE("The cost model's constants are those of the paper's tables", "[operations]") {
  // Per element 5; with a Hadamard transform of 32 channels 5 + 2·5; with a norm 3 more.
  CHECK(operations_of("kivi", {}, "encode_mops_model") == Approx(96 * 64 * 5));
  CHECK(operations_of("hadamard", {}, "encode_mops_model") == Approx(96 * 64 * 15));
  CHECK(operations_of("oscar_ots", {}, "encode_mops_model") == Approx(96 * 64 * 18));
  // Two an element of history, one more to scale back, and one token's encoding.
  CHECK(operations_of("kivi", {}, "decode_mops_model") == Approx(64 * 64 * 2 + 64 * 5));
  CHECK(operations_of("oscar_ots", {}, "decode_mops_model") == Approx(64 * 64 * 3 + 64 * 18));
}

TEST_CASE("Operations counted by hand", "[operations]") {
  // float_zero, a group of 32: 2·31 comparisons, a step (2), then for each element a difference, a
  // quotient, a rounding and two comparisons.
  const double group = 2 * 31 + 2 + 32 * 5;
  CHECK(operations_of("kivi", {}, "encode_mops") == Approx(96 * 2 * group));
  // rounded_zero: the zero takes a quotient, a difference and a rounding; an element no difference
  // but a sum.
  const double rounded = 2 * 31 + 2 + 3 + 32 * 5;
  CHECK(operations_of("kcvt_base", {}, "encode_mops") == Approx(96 * 2 * rounded));
  // Butterflies: 32 sums and differences a stage, five stages, 32 products.
  const double butterflies = 5 * 32 + 32;
  CHECK(operations_of("hadamard", {}, "encode_mops") == Approx(96 * 2 * (rounded + butterflies)));
  // A norm: 32 squares and sums, a root, 32 quotients.
  const double norm = 2 * 32 + 1 + 32;
  CHECK(operations_of("oscar_ots", {}, "encode_mops") ==
        Approx(96 * 2 * (rounded + butterflies + norm)));
  // A dense rotation: 32 products and 31 sums an output.
  CHECK(operations_of("hadamard", {{"key.rotate", "random_orthogonal"}}, "encode_mops") ==
        Approx(96 * 2 * (rounded + 32 * 63)));
  // Decoding: 2 an element of 64 tokens, a logit of each query head, their rotation, one token.
  CHECK(operations_of("oscar_ots", {}, "decode_mops") ==
        Approx(64 * (64 * 2 + 4) + 4 * butterflies + 2 * (rounded + butterflies + norm)));
}

TEST_CASE("16 bits take no operations", "[operations]") {
  CHECK(operations_of("bf16", {}, "encode_mops") == 0);
  CHECK(operations_of("bf16", {}, "decode_mops_model") == 0);
}
