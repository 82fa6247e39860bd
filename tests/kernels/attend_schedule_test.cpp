#include "kvlab/kernels/attend_schedule.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "catch.h"

using namespace kvlab::kernels::cuda;

namespace {

/// The smallest size of a place with which `turns` fit into `places`, as the kernel finds it.
int smallest_size(const std::vector<int>& turns, int places) {
  const long long all = std::accumulate(turns.begin(), turns.end(), 0LL);
  const PlaceSizes sizes = place_sizes(all, static_cast<int>(turns.size()), places);
  for (int size = sizes.least;; ++size) {
    Placing placing(size);
    for (const int count : turns) placing.add(count);
    if (placing.places() <= places) return size;
    REQUIRE(size < sizes.most);  // which always suffices
  }
}

}  // namespace

TEST_CASE("a schedule lays every turn out once, and no place has more than its size") {
  std::mt19937 random(3);
  for (int trial = 0; trial < 3000; ++trial) {
    const int batch = 1 + static_cast<int>(random() % 40);
    const int places = batch * (1 + static_cast<int>(random() % 5));
    std::vector<int> turns;
    for (int i = 0; i < batch; ++i) {
      turns.push_back(1 + static_cast<int>(random() % (random() % 3 == 0 ? 400 : 12)));
    }
    const int size = smallest_size(turns, places);
    std::vector<int> load(static_cast<size_t>(places), 0);
    std::vector<int> sequences(static_cast<size_t>(places), 0);
    Placing placing(size);
    int next = 0;  // place in which the next sequence begins at the earliest
    for (const int count : turns) {
      const Placing::Span span = placing.add(count);
      REQUIRE(span.first >= next);
      REQUIRE(span.last < places);
      next = span.last;
      REQUIRE(span.opens == (sequences[static_cast<size_t>(span.first)] == 0));
      int left = count;
      for (int place = span.first; place <= span.last; ++place) {
        const int here = place == span.first ? span.head : std::min(size, left);
        REQUIRE(here > 0);
        left -= here;
        load[static_cast<size_t>(place)] += here;
        ++sequences[static_cast<size_t>(place)];
      }
      REQUIRE(left == 0);
    }
    for (size_t place = 0; place < load.size(); ++place) {
      REQUIRE(load[place] + kFurtherSequence * std::max(0, sequences[place] - 1) <= size);
    }
  }
}

TEST_CASE("a schedule of equal lengths gives each sequence its own places") {
  const std::vector<int> turns(8, 64);
  CHECK(smallest_size(turns, 16) == 32);
  Placing placing(32);
  for (int i = 0; i < 8; ++i) {
    const Placing::Span span = placing.add(64);
    CHECK(span.opens);
    CHECK(span.first == 2 * i);
    CHECK(span.last == 2 * i + 1);
  }
}

TEST_CASE("a schedule gives one long sequence nearly all places") {
  std::vector<int> turns(8, 4);
  turns[0] = 128;
  // 128 turns over two places were 64.
  CHECK(smallest_size(turns, 16) <= 13);
}
