#include <algorithm>
#include <stdexcept>

#include "catch.h"
#include "kvlab/kernels/cuda.h"

using namespace kvlab::kernels;

namespace {

CacheView cache_of(const Format& format, int batch, int kv_heads) {
  CacheView cache;
  cache.format = format;
  cache.batch = batch;
  cache.kv_heads = kv_heads;
  return cache;
}

AttendArgs queries(int q_heads, int query_tokens) {
  AttendArgs args;
  args.q_heads = q_heads;
  args.query_tokens = query_tokens;
  return args;
}

constexpr cuda::Device kH200{132, 9};

/// Whether this build has plans at all.
bool has_plans() {
  try {
    cuda::plan_attend(cache_of(f1(), 1, 8), queries(32, 1), 64, kH200);
    return true;
  } catch (const std::runtime_error&) {
    WARN("skipped: this build has no CUDA parts, so no plans");
    return false;
  }
}

}  // namespace

TEST_CASE("a plan of GPU attention fills the GPU and no more than the history has") {
  if (!has_plans()) return;
  for (const int batch : {1, 2, 8, 16, 48, 256}) {
    for (const int tokens : {1, 64, 4096, 131072, 1 << 20}) {
      const auto plan = cuda::plan_attend(cache_of(f1(), batch, 8), queries(32, 1), tokens, kH200);
      const int records = (tokens + 63) / 64;
      CHECK(plan.splits >= 1);
      CHECK((plan.splits == 1 || plan.splits * plan.warps < records + plan.warps));
      CHECK((plan.splits == 1 || plan.splits * batch * 8 <= 2 * kH200.multiprocessors));
      CHECK(plan.instance >= 0);
    }
  }
}

TEST_CASE("rows of a plan hold all query heads and tokens") {
  if (!has_plans()) return;
  for (const int group : {1, 2, 3, 4, 5, 8, 16}) {
    for (const int query_tokens : {1, 2, 8}) {
      for (const Format& format : {f1(64), f1(128), f1(256), f2(64), f2(128), f2(256)}) {
        const auto plan = cuda::plan_attend(cache_of(format, 2, 2),
                                            queries(2 * group, query_tokens), 1000, kH200);
        CHECK(plan.rows * plan.row_tiles >= group * query_tokens);
        CHECK(plan.rows * (plan.row_tiles - 1) < group * query_tokens);
      }
    }
  }
}

TEST_CASE(
    "tokens in 16 bits have blocks of their own or go with the history's; each part has memory") {
  if (!has_plans()) return;
  for (const int batch : {1, 2, 3, 4, 8, 9, 16, 17, 32, 48, 300}) {
    for (const int tokens : {1, 64, 4096, 32768, 131072, 1 << 20}) {
      CacheView cache = cache_of(f2(), batch, 8);
      const auto without = cuda::plan_attend(cache, queries(32, 1), tokens, kH200);
      CHECK_FALSE(without.inside);
      CHECK(without.window == 0);
      cache.sink_capacity = 64;
      cache.recent_capacity = 288;
      const auto plan = cuda::plan_attend(cache, queries(32, 1), tokens, kH200);
      CHECK(plan.inside == (plan.window == 0));
      CHECK(plan.splits >= 1);
      CHECK(plan.splits + plan.window <= std::max(1, 3 * kH200.multiprocessors / (8 * batch)));
      const std::int64_t items = 8 * batch * plan.row_tiles;
      const int blocks = plan.splits + plan.window;
      const int parts = blocks > 1 ? plan.splits + (plan.inside ? plan.splits : plan.window) : 0;
      CHECK(plan.scratch_bytes >= items * 4 + items * parts * plan.rows * (128 + 2) * 4);
    }
  }
}

TEST_CASE("lengths that are unlike ask for a schedule where there is more than one sequence") {
  if (!has_plans()) return;
  const auto plan_of = [](int batch, cuda::Lengths lengths) {
    return cuda::plan_attend(cache_of(f1(), batch, 8), queries(32, 1), 32768, kH200, lengths);
  };
  CHECK_FALSE(plan_of(8, cuda::Lengths::alike).scheduled);
  CHECK_FALSE(plan_of(1, cuda::Lengths::unlike).scheduled);
  CHECK_FALSE(plan_of(2000, cuda::Lengths::unlike).scheduled);  // more than a schedule takes
  const auto plan = plan_of(8, cuda::Lengths::unlike);
  CHECK(plan.scheduled);
  // A block in which a sequence ends and the next begins makes a part of each.
  const std::int64_t parts = 8 * (8 * plan.splits + 7);
  CHECK(plan.scratch_bytes >= parts * plan.rows * (128 + 2) * 4);
}

TEST_CASE("a window takes as few places from the history as it can") {
  if (!has_plans()) return;
  const auto plan_of = [](int batch, int tokens) {
    CacheView cache = cache_of(f1(), batch, 8);
    cache.sink_capacity = 64;
    cache.recent_capacity = 257;
    return cuda::plan_attend(cache, queries(32, 1), tokens, kH200);
  };
  CHECK(plan_of(1, 4096).splits == 8);    // all that its records ask for …
  CHECK(plan_of(1, 4096).window == 3);    // … and free places for the window
  CHECK(plan_of(1, 32768).splits == 15);  // of 16
  CHECK(plan_of(8, 32768).splits == 2);   // one of its own would halve the history's
  CHECK(plan_of(8, 32768).inside);
  CHECK(plan_of(48, 4096).inside);
}

TEST_CASE(
    "what no kernel serves is refused by name, and compute capability 8 needs no bulk copies") {
  if (!has_plans()) return;
  CHECK_THROWS_WITH(cuda::plan_attend(cache_of(f1(), 1, 8), queries(12, 1), 64, kH200),
                    ContainsSubstring("12 query heads to 8 KV heads"));
  CHECK_THROWS_WITH(cuda::plan_attend(cache_of(f1(), 1, 1), queries(17, 1), 64, kH200),
                    ContainsSubstring("1 to 16"));
  CHECK_THROWS_WITH(cuda::plan_attend(cache_of(f1(), 1, 8), queries(32, 9), 64, kH200),
                    ContainsSubstring("1 to 8 query tokens"));
  Format odd = f1();
  odd.dim = 96;
  CHECK_THROWS_WITH(cuda::plan_attend(cache_of(odd, 1, 8), queries(32, 1), 64, kH200),
                    ContainsSubstring("96"));
  CHECK_FALSE(cuda::plan_attend(cache_of(f1(), 1, 8), queries(32, 1), 64, {108, 8}).bulk);
}
