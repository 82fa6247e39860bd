#include "kvlab/kernels/format.h"

#include "cache_fixture.h"
#include "catch.h"

using namespace plain;
using kn::Format;

TEST_CASE("a format's name leads back to it", "[kernels]") {
  CHECK(kn::name_of(kn::f1(64)) == "f1");
  CHECK(kn::name_of(kn::f2(256)) == "f2");
  CHECK(kn::format_named("f2", 64) == kn::f2(64));
  for (const char* name :
       {"k:channel,g64,b4;v:token,g64,b4", "k:token,g32,b2,offset,bf16;v:token,g32,b8,none",
        "k:channel,g128,b2,codebook,f32;v:token,g128,b2;norm:heads,f32,inverse;window:f16"}) {
    CHECK(kn::name_of(kn::format_named(name, 128)) == name);
  }
}

TEST_CASE("a wrong name is told by its part", "[kernels]") {
  for (const char* name : {"f3", "k:token,g32;v:token,h32", "k:token,g32", "k:token,gg;v:token",
                           "k:token;v:token;norm:row", "k:token;v:token;window:f8", ""}) {
    CAPTURE(name);
    CHECK_THROWS_AS(kn::format_named(name, 128), std::invalid_argument);
  }
  CHECK_THROWS_WITH(kn::format_named("k:token,g32,b2;v:tokens,g32,b2", 128),
                    ContainsSubstring("'tokens'"));
}

TEST_CASE("D16 D67 D68 what no kernel serves is refused with its name", "[kernels]") {
  const auto why = [](auto change) {
    Format format = kn::f2();
    change(format);
    return kn::refusal(format).value_or("");
  };
  CHECK(why([](Format&) {}).empty());
  CHECK_THAT(why([](Format& f) { f.dim = 96; }), ContainsSubstring("96"));
  CHECK_THAT(why([](Format& f) { f.key.bits = 3; }), ContainsSubstring("keys: 3 bits"));
  for (const int group : {8, 12, 16, 48, 96, 256}) {
    CHECK_THAT(why([&](Format& f) { f.value.group = group; }),
               ContainsSubstring("values: groups of " + std::to_string(group)));
  }
  CHECK_THAT(why([](Format& f) {
               f.dim = 64;
               f.value.group = 128;
             }),
             ContainsSubstring("head of 64"));
  CHECK_THAT(why([](Format& f) { f.value.axis = kn::Axis::channel; }),
             ContainsSubstring("per-channel"));
  CHECK_THAT(why([](Format& f) {
               f.key.bits = 4;
               f.key.zero = kn::Zero::codebook;
             }),
             ContainsSubstring("codebook of 4 bits"));
  CHECK_THAT(why([](Format& f) { f.window = kn::Type::f32; }), ContainsSubstring("window"));
}

TEST_CASE("D67 operations refuse before they touch anything", "[kernels]") {
  const Captured x = captured(1, 2, 64, 128);
  Cache cache({kn::f1(), {}, 2, 64, 1}, {40});
  const kn::EncodeSpec spec = spec_of(kn::f1());
  const std::vector<std::uint8_t> before = cache.pool();
  kn::CacheView view = cache.view();
  const auto refuses = [&](const kn::CacheView& wrong, const kn::EncodeSpec& how,
                           const char* text) {
    CHECK_THROWS_WITH(kn::cpu::encode(wrong, how, x.from(0), kn::kAllTokens, 1),
                      ContainsSubstring(text));
    CHECK(cache.pool() == before);
  };
  view.format.key.bits = 3;
  refuses(view, spec, "3 bits");
  view = cache.view();
  view.block_table = nullptr;
  refuses(view, spec, "block table");
  view = cache.view();
  view.recent_capacity = 0;
  refuses(view, spec, "ring");
  kn::EncodeSpec other = spec;
  other.key.grid.zero = kn::Zero::offset;
  refuses(cache.view(), other, "grid");
  other = spec;
  other.key.rotation.kind = kn::Rotation::Kind::dense;
  refuses(cache.view(), other, "matrix");
  other = spec;
  other.key.scale = kn::TokenScale::l2_head;
  refuses(cache.view(), other, "norm");
  other = spec;
  other.value.clip = kn::Clip::row;
  other.value.clip_index = 128;
  refuses(cache.view(), other, "clip index");
  view = cache.view();
  view.format = kn::f2();
  view.rule.group = 1;
  refuses(view, spec_of(kn::f2()), "per-channel groups");
}
