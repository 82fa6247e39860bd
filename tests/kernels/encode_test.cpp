#include "cache_fixture.h"
#include "catch.h"

using namespace plain;
using kn::Axis;
using kn::Flush;
using kn::Format;
using kn::Rotation;
using kn::WindowRule;

namespace {

/// The blocks of two caches that hold history, byte for byte; a partly filled last block included.
void check_equal(const Cache& a, const Cache& b) {
  const kn::CacheView& view = a.view();
  for (int s = 0; s < view.batch; ++s) {
    const int tokens = view.tokens[s];
    const kn::HistoryEnds ends = kn::history_ends(view.rule, tokens);
    const int history = std::max(ends.key, ends.value) - kn::history_begin(view, tokens);
    const int per_block = kn::block_tokens(view.format);
    for (int i = 0; i * per_block < history; ++i) {
      for (int h = 0; h < view.kv_heads; ++h) {
        CAPTURE(s, h, i);
        REQUIRE(a.block(s, h, i) == b.block(s, h, i));
      }
    }
  }
}

/// Feeds a cache in calls of these many tokens (the last is repeated) until it holds n. Single
/// tokens come from the ring, more of them from the source.
void feed(Cache& cache, const kn::EncodeSpec& spec, const Captured& x, int n,
          std::vector<int> steps) {
  set_levels(cache.view(), spec);
  int held = 0;
  for (size_t i = 0; held < n; ++i) {
    const int step = std::min(steps[std::min(i, steps.size() - 1)], n - held);
    held += step;
    cache.tokens().assign(cache.tokens().size(), held);
    kn::cpu::write_windows(cache.view(), x.from(held - step), step, 1);
    kn::cpu::encode(cache.view(), spec, step == 1 ? kn::TokenSource{} : x.from(held - step), step,
                    1);
  }
}

struct Case {
  const char* format;
  WindowRule rule;
};

const Case kCases[] = {
    {"f1", {Flush::block, 0, 0, 1}},
    {"f1", {Flush::ring, 64, 256, 1}},
    {"f1", {Flush::block, 4, 64, 1}},
    {"f2", {Flush::block, 64, 256, 32}},
    {"f2", {Flush::ring, 3, 0, 32}},
    {"f2", {Flush::full, 0, 128, 32}},
    {"f2", {Flush::kivi, 5, 128, 32}},
    {"k:channel,g128,b2;v:token,g32,b2;norm:heads,f32", {Flush::kivi, 0, 128, 128}},
    {"k:token,g64,b4;v:token,g32,b8", {Flush::kivi, 1, 50, 1}}};

}  // namespace

TEST_CASE("D18 D20 D39 the bytes do not depend on how tokens come in", "[kernels]") {
  const int n = 417;
  for (const Case& test : kCases) {
    const Format format = kn::format_named(test.format, 128);
    const Captured x = captured(2, 2, n, 128);
    const kn::EncodeSpec spec = spec_of(format, Rotation::Kind::hadamard);
    Cache whole({format, test.rule, 2, 512, 1}, {n, n});
    prefill(whole, spec, x);
    const std::vector<std::vector<int>> ways = {{1},     {n}, {7, 153, 1}, {32}, {31, 33, 96, 8},
                                                {400, 1}};
    for (const std::vector<int>& steps : ways) {
      CAPTURE(test.format, static_cast<int>(test.rule.flush), test.rule.sink, test.rule.recent,
              steps);
      Cache fed({format, test.rule, 2, 512, 400}, {0, 0});
      feed(fed, spec, x, n, steps);
      check_equal(fed, whole);
      CHECK(compare(fed, spec, x, 4, 1).error < 1e-5);
    }
  }
}

TEST_CASE("10,000 steps of a token leave the bytes of one prefill", "[kernels]") {
  const int n = 10000;
  const Captured x = captured(1, 1, n, 64);
  for (const Case& test : kCases) {
    Format format = kn::format_named(test.format, 64);
    const kn::EncodeSpec spec = spec_of(format, Rotation::Kind::hadamard);
    Cache whole({format, test.rule, 1, n, 1}, {n});
    prefill(whole, spec, x);
    Cache fed({format, test.rule, 1, n, 1}, {0});
    feed(fed, spec, x, n, {1});
    CAPTURE(test.format, static_cast<int>(test.rule.flush));
    check_equal(fed, whole);
  }
}

TEST_CASE("D30 D73 neither batch mates nor threads change a byte or an output", "[kernels]") {
  for (const char* name : {"f1", "f2"}) {
    const Format format = kn::format_named(name, 128);
    const WindowRule rule{Flush::block, 2, 3, format.key.axis == Axis::channel ? 32 : 1};
    const kn::EncodeSpec spec = spec_of(format, Rotation::Kind::hadamard);
    Captured both = captured(2, 2, 300, 128);
    Captured alone = both;
    alone.batch = 1;
    for (size_t i = both.key.size() / 2; i < both.key.size(); ++i) {
      both.key[i] = kn::to_bf16(100 * kn::from_bf16(both.key[i]));
    }
    Cache pair({format, rule, 2, 300, 1}, {300, 44});
    Cache single({format, rule, 2, 300, 1}, {300});
    prefill(pair, spec, both, 3);
    prefill(single, spec, alone, 1);
    check_equal(single, pair);
  }
}

TEST_CASE("a step that is longer than the ring has room for is refused", "[kernels]") {
  const Captured x = captured(1, 1, 200, 128);
  const kn::EncodeSpec spec = spec_of(kn::f1());
  Cache cache({kn::f1(), {Flush::block, 0, 64, 1}, 1, 200, 1}, {60});
  prefill(cache, spec, x);
  cache.tokens()[0] = 200;
  CHECK_THROWS_WITH(kn::cpu::encode(cache.view(), spec, x.from(60), 140, 1),
                    ContainsSubstring("ring"));
}

TEST_CASE("D66 nothing beside the buffers is written", "[kernels]") {
  // Pages that no sequence uses keep their bytes.
  const Captured x = captured(1, 2, 130, 128);
  const kn::EncodeSpec spec = spec_of(kn::f2(), Rotation::Kind::hadamard);
  Cache cache({kn::f2(), {Flush::block, 0, 0, 32}, 2, 640, 1}, {130});
  prefill(cache, spec, x);
  size_t kept = 0;
  const auto page = static_cast<size_t>(2 * kn::layout_of(kn::f2()).bytes);
  for (size_t i = 0; i < cache.pool().size(); i += page) {
    kept += std::all_of(cache.pool().begin() + static_cast<std::ptrdiff_t>(i),
                        cache.pool().begin() + static_cast<std::ptrdiff_t>(i + page),
                        [](std::uint8_t byte) { return byte == 0xff; });
  }
  CHECK(kept == 8);
}
