#include "cache_fixture.h"
#include "catch.h"

using namespace plain;
using kn::Axis;
using kn::Flush;
using kn::Format;
using kn::Rotation;
using kn::Type;
using kn::WindowRule;

namespace {

/// Every kind of format once, small enough to go through many lengths.
std::vector<Format> formats() {
  std::vector<Format> list;
  for (const int dim : {64, 128, 256}) {
    list.push_back(kn::f1(dim));
    list.push_back(kn::f2(dim));
  }
  for (const char* name :
       {"k:token,g32,b2,offset;v:token,g64,b2,offset,bf16",
        "k:channel,g64,b4;v:token,g64,b4;norm:heads,f32",
        "k:channel,g128,b2,none,f32;v:token,g32,b8,none", "k:token,g64,b8;v:token,g128,b4,offset",
        "k:token,g32,b2,codebook;v:token,g32,b2,codebook,bf16;norm:head,bf16,inverse",
        "k:channel,g32,b2,codebook;v:token,g128,b2;window:f16",
        "k:channel,g32,b2,offset,f32;v:token,g32,b2,offset;norm:heads,f32"}) {
    list.push_back(kn::format_named(name, 128));
  }
  list.push_back(kn::format_named("k:channel,g64,b2;v:token,g32,b2;norm:head", 256));
  list.push_back(kn::format_named("k:token,g64,b2;v:token,g32,b2,bf16", 64));
  list.push_back(kn::format_named("k:channel,g128,b4;v:token,g32,b4", 64));
  return list;
}

int group_of(const Format& format) {
  return format.key.axis == Axis::channel ? format.key.group : 1;
}

}  // namespace

TEST_CASE("D60 D62 D75 attention equals float64 attention over the dequantized cache",
          "[kernels]") {
  int number = 0;
  for (const Format& format : formats()) {
    const int group = group_of(format);
    const WindowRule rules[] = {{Flush::block, 0, 0, group},
                                {Flush::block, 5, 40, group},
                                {Flush::full, 64, 128, group},
                                {Flush::kivi, 3, 128, group},
                                {Flush::ring, 4, 33, group}};
    for (const WindowRule& rule : rules) {
      // Captured tokens are bf16: an f16 window would round them.
      const int lengths[] = {1, 31, 32, 33, 127, 128, 129, 255, 257, 391};
      const int query_tokens = 1 + number % 8;
      const int heads[] = {1, 2, 4, 5, 7, 8, 16};
      const int q_heads = 2 * heads[number % 7];
      const std::vector<int> tokens = {lengths[number % 10], 0, lengths[(number + 3) % 10]};
      CAPTURE(kn::name_of(format), format.dim, static_cast<int>(rule.flush), query_tokens, q_heads,
              tokens);
      ++number;
      Format used = format;
      used.window = Type::bf16;
      Cache cache({used, rule, 2, 512, 1}, tokens);
      const Captured x = captured(3, 2, 400, format.dim);
      const auto rotation = number % 2 == 0 ? Rotation::Kind::hadamard : Rotation::Kind::none;
      const kn::EncodeSpec spec = spec_of(used, rotation);
      prefill(cache, spec, x);
      const Compared compared = compare(cache, spec, x, q_heads, query_tokens);
      CHECK(compared.error < 1e-5);
      CHECK(compared.lse_error < 1e-5);
    }
  }
}
