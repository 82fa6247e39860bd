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

TEST_CASE("a window adds one block and scratch memory holds every part") {
  if (!has_plans()) return;
  CacheView cache = cache_of(f2(), 3, 4);
  cache.sink_capacity = 64;
  const auto plan = cuda::plan_attend(cache, queries(16, 1), 32768, kH200);
  CHECK(plan.window == 1);
  const std::int64_t items = 3 * 4 * plan.row_tiles;
  CHECK(plan.scratch_bytes >= items * 4 + items * (plan.splits + 1) * plan.rows * (128 + 2) * 4);
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
