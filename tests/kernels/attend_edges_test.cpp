#include "cache_fixture.h"
#include "catch.h"

using namespace plain;
using kn::Flush;
using kn::Format;
using kn::Rotation;
using kn::WindowRule;

namespace {

const char* const kFormats[] = {"f1", "f2"};

WindowRule rule_for(const Format& format, Flush flush, int sink, int recent) {
  return {flush, sink, recent, format.key.axis == kn::Axis::channel ? format.key.group : 1};
}

}  // namespace

TEST_CASE("D23 D24 D57 lengths around every edge, sinks longer than the sequence", "[kernels]") {
  const Captured x = captured(1, 2, 4096 + 7, 128);
  for (const char* name : kFormats) {
    const Format format = kn::format_named(name, 128);
    const kn::EncodeSpec spec = spec_of(format, Rotation::Kind::hadamard);
    for (const int tokens : {0, 1, 31, 32, 33, 127, 128, 129, 255, 257, 4096 + 7}) {
      for (const WindowRule& rule :
           {rule_for(format, Flush::block, 0, 0), rule_for(format, Flush::block, 300, 0),
            rule_for(format, Flush::kivi, 0, 128), rule_for(format, Flush::ring, 64, 256),
            rule_for(format, Flush::full, 5000, 5024)}) {
        CAPTURE(name, tokens, static_cast<int>(rule.flush), rule.sink, rule.recent);
        Cache cache({format, rule, 2, 4200, 1}, {tokens});
        prefill(cache, spec, x);
        const Compared compared = compare(cache, spec, x, 8, 2);
        CHECK(compared.error < 2e-5);
        CHECK(compared.lse_error < 1e-5);
      }
    }
  }
}

TEST_CASE("D55 unequal lengths in permuted pages, one of them empty", "[kernels]") {
  const Captured x = captured(5, 2, 300, 128);
  for (const char* name : kFormats) {
    const Format format = kn::format_named(name, 128);
    const kn::EncodeSpec spec = spec_of(format);
    Cache cache({format, rule_for(format, Flush::block, 4, 16), 2, 320, 1}, {32, 0, 300, 96, 1});
    prefill(cache, spec, x);
    const Compared compared = compare(cache, spec, x, 8, 1);
    CHECK(compared.error < 1e-5);
    CHECK(compared.lse_error < 1e-5);
  }
}

TEST_CASE("large logits: a step of a thousand between tokens", "[kernels]") {
  const Captured x = captured(1, 1, 700, 128);
  for (const char* name : kFormats) {
    const Format format = kn::format_named(name, 128);
    for (const auto rotation : {Rotation::Kind::none, Rotation::Kind::hadamard}) {
      const kn::EncodeSpec spec = spec_of(format, rotation);
      Cache cache({format, rule_for(format, Flush::block, 3, 40), 1, 700, 1}, {700});
      prefill(cache, spec, x);
      // Queries of size 3,000 make logits of about ±1e4.
      CAPTURE(name, static_cast<int>(rotation));
      CHECK(compare(cache, spec, x, 4, 1, 3000.0f).error < 2e-3);
      CHECK(compare(cache, spec, x, 4, 8, 0.0f).error < 1e-5);
    }
  }
}

TEST_CASE("one token holds all the mass", "[kernels]") {
  Captured x = captured(1, 1, 500, 128);
  // Token 200 is along the query, all others far from it.
  for (const int chosen : {0, 40, 200, 499}) {
    for (size_t c = 0; c < 128; ++c) {
      for (int t = 0; t < 500; ++t) {
        x.key[x.row(0, 0, t) + c] =
            kn::to_bf16(t == chosen ? 8.0f : -8.0f + 0.01f * static_cast<float>(t % 7));
      }
    }
    for (const char* name : kFormats) {
      const Format format = kn::format_named(name, 128);
      const kn::EncodeSpec spec = spec_of(format);
      Cache cache({format, rule_for(format, Flush::block, 1, 32), 1, 512, 1}, {500});
      prefill(cache, spec, x);
      const std::vector<float> query(128, 3.0f);
      std::vector<float> output(128);
      kn::AttendArgs args;
      args.query = query.data();
      args.query_type = args.output_type = kn::Type::f32;
      args.q_heads = 1;
      args.scale = 1.0f;
      args.output = output.data();
      kn::cpu::attend(cache.view(), args, 1);
      const Read tokens = read(cache, spec, x, 0, 0);
      CAPTURE(name, chosen);
      for (size_t c = 0; c < 128; ++c) {
        CHECK(std::fabs(output[c] - tokens.value[static_cast<size_t>(chosen) * 128 + c]) < 1e-5);
      }
    }
  }
}

TEST_CASE("D56 a history of several pieces of work gives what one does", "[kernels]") {
  const int n = 2 * 16384 + 100;
  const Captured x = captured(1, 1, n, 64);
  const Format format = kn::f1(64);
  const kn::EncodeSpec spec = spec_of(format);
  Cache cache({format, {Flush::block, 2, 30, 1}, 1, n, 1}, {n});
  prefill(cache, spec, x);
  CHECK(compare(cache, spec, x, 4, 1).error < 1e-4);
  CHECK(compare(cache, spec, x, 4, 1, 30.0f).error < 1e-4);
}

TEST_CASE("D71 doubled scales move values twice as far from their zero", "[kernels]") {
  const Captured x = captured(1, 1, 64, 128);
  const Format format = kn::f1();
  const kn::EncodeSpec spec = spec_of(format);
  Cache cache({format, {}, 1, 64, 1}, {64});
  prefill(cache, spec, x);
  const Read before = read(cache, spec, x, 0, 0);
  const kn::Layout layout = kn::layout_of(format);
  std::uint8_t* block = kn::block_at(cache.view(), layout.bytes, 0, 0, 0);
  for (int i = 0; i < 64; ++i) {
    const float scale = kn::load_number(block + layout.value_scale, i, kn::Type::f16);
    kn::store_number(block + layout.value_scale, i, kn::Type::f16, 2 * scale);
  }
  const Read after = read(cache, spec, x, 0, 0);
  for (int t = 0; t < 63; ++t) {
    const int place = kn::param_index(format, format.value, t, 0);
    const double zero = kn::load_number(block + layout.value_zero, place, kn::Type::f16);
    for (int c = 0; c < 128; ++c) {
      const auto at = static_cast<size_t>(t) * 128 + c;
      REQUIRE(after.value[at] - zero == Approx(2 * (before.value[at] - zero)).margin(1e-6));
    }
  }
}
