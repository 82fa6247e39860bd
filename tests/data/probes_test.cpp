#include "data/probes.h"

#include <numeric>

#include "base/error.h"
#include "catch.h"

using namespace kvlab::data;
using Positions = std::vector<int64_t>;

TEST_CASE("data: strided probes follow the contract's formula", "[data]") {
  CHECK(probe_positions(512, {"strided", 4}) == Positions{319, 383, 447, 511});
  CHECK(probe_positions(511, {"strided", 4}) == Positions{318, 382, 446, 510});
  CHECK(probe_positions(10, {"strided", 1}) == Positions{9});
  const Positions many = probe_positions(4096, {"strided", 64});
  CHECK(many.size() == 64);
  CHECK(many.front() == 2079);
  CHECK(many.back() == 4095);
}

TEST_CASE("data: equal strided positions count once and none is negative", "[data]") {
  CHECK(probe_positions(10, {"strided", 64}) == Positions{4, 5, 6, 7, 8, 9});
  CHECK(probe_positions(2, {"strided", 64}) == Positions{0, 1});
  CHECK(probe_positions(1, {"strided", 64}) == Positions{0});
}

TEST_CASE("data: last and all probes", "[data]") {
  CHECK(probe_positions(10, {"last", 3}) == Positions{7, 8, 9});
  CHECK(probe_positions(2, {"last", 3}) == Positions{0, 1});
  Positions all(10);
  std::iota(all.begin(), all.end(), 0);
  CHECK(probe_positions(10, {"all", 0}) == all);
}

TEST_CASE("data: a wrong probe choice is refused", "[data]") {
  CHECK_THROWS_WITH(probe_positions(10, {"stridden", 3}),
                    "probes: placement 'stridden' is not one of strided, last, all "
                    "(did you mean 'strided'?)");
  CHECK_THROWS_WITH(probe_positions(10, {"last", 0}), "probes: count must be at least 1, found 0");
}

TEST_CASE("data: asked positions are found among those held, or not at all", "[data]") {
  CHECK(indices_of({3, 9}, {1, 3, 5, 9}) == Positions{1, 3});
  CHECK(indices_of({3, 4}, {1, 3, 5, 9}).empty());
  CHECK(indices_of({10}, {1, 3}).empty());
}
