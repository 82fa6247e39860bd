#include "cache/pool.h"

#include <limits>

#include "catch.h"

using kvlab::cache::pool_membership;

namespace {
constexpr int64_t kStill = std::numeric_limits<int64_t>::max();
}

TEST_CASE("a pool of two by hand: each group competes with the members", "[pool]") {
  // Groups of three: {5 1 4}, {3 9 2}, {8 7 1}.
  const std::vector<double> scores = {5, 1, 4, 3, 9, 2, 8, 7, 1};
  // Group 0: 1 and 4 (tokens 1, 2) win. Group 1: of {1, 4, 3, 9, 2} 1 and 2 (tokens 1, 5): token 2
  // leaves when two groups are there. Group 2: of {1, 2, 8, 7, 1} the two ones: token 5 leaves
  // with three.
  CHECK(pool_membership(scores, 0, 3, 3, 2) ==
        std::vector<int64_t>{0, kStill, 2, 0, 0, 3, 0, 0, kStill});
}

TEST_CASE("a pool looks at whole groups from its begin on, and ties go to the earlier token",
          "[pool]") {
  // begin 1, two groups of two; tokens 0 and 5 belong to none.
  CHECK(pool_membership({0, 3, 3, 3, 1, 0}, 1, 2, 2, 1) ==
        std::vector<int64_t>{0, 2, 0, 0, kStill, 0});
  CHECK(pool_membership({4, 4}, 0, 1, 2, 1) == std::vector<int64_t>{kStill, 0});
  // More places than tokens: all stay.
  CHECK(pool_membership({2, 1}, 0, 2, 1, 5) == std::vector<int64_t>{kStill, kStill});
}
