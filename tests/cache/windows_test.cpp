#include "cache/windows.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "cache/decoder.h"
#include "catch.h"
#include "method/recipe.h"

using namespace kvlab;
using cache::Windows;
using plain::Decoder;
using plain::Rule;
using Side = cache::Windows::Side;

namespace {

Settings settings_of(const Rule& rule) {
  Settings settings = method::preset("kivi").settings;
  const auto side = [&](const std::string& name, int64_t group, bool quantized) {
    settings[name + ".codec.kind"] = quantized ? "uniform" : "passthrough";
    settings[name + ".codec.axis"] = group > 1 ? "channel" : "token";
    settings[name + ".codec.group"] = group > 1 ? group : 128;
  };
  side("key", rule.key_group, rule.keys);
  side("value", rule.value_group, rule.values);
  settings["window.sink"] = rule.sink;
  settings["window.recent"] = rule.recent;
  settings["window.flush"] = rule.flush;
  return settings;
}

std::string text(const Rule& rule) {
  return rule.flush + " sink " + std::to_string(rule.sink) + " recent " +
         std::to_string(rule.recent) + " groups " + std::to_string(rule.key_group) + "/" +
         std::to_string(rule.value_group);
}

void compare(const Rule& rule, int64_t steps) {
  CAPTURE(text(rule), rule.keys, rule.values);
  const Windows windows(settings_of(rule), steps);
  Decoder decoder(rule);
  for (int64_t p = 0; p < steps; ++p) {
    const Decoder::Seen seen = decoder.step();
    CAPTURE(p);
    // A side that is not quantized has no history, [s0, s0).
    REQUIRE(windows.boundary(Side::key, p) - windows.begin() == seen.key);
    REQUIRE(windows.boundary(Side::value, p) - windows.begin() == seen.value);
  }
}

/// Full-precision tokens that are left in the cache once T tokens went through it: what the next
/// step finds.
int64_t left(const Windows& windows, Side side, int64_t tokens) {
  return tokens - windows.boundary(side, tokens);
}

}  // namespace

TEST_CASE("D19 D25 D26 boundaries equal a cache that decodes token by token", "[windows]") {
  for (const int64_t sink : {0, 1, 5, 64}) {
    for (const int64_t key : {1, 4, 32}) {
      for (const int64_t value : {1, 4, 6}) {
        const int64_t group = std::lcm(key, value);
        for (const std::string flush : {"block", "ring"}) {
          for (const int64_t recent : {int64_t{0}, int64_t{1}, int64_t{7}, group, group * 2 + 3}) {
            compare({flush, sink, recent, key, value}, 260);
          }
        }
        for (const int64_t recent : {int64_t{0}, group, group * 3}) {
          compare({"full", sink, recent, key, value}, 260);
          if (value == 1) compare({"kivi", sink, recent, key, value}, 260);
        }
      }
    }
  }
}

TEST_CASE("a passthrough side has no history and no part in the group", "[windows]") {
  for (const std::string flush : {"block", "full", "ring"}) {
    compare({flush, 3, 12, 4, 6, true, false}, 100);
    compare({flush, 3, 12, 4, 6, false, true}, 100);
  }
  compare({"kivi", 3, 12, 4, 1, true, false}, 100);
  compare({"kivi", 3, 12, 4, 1, false, true}, 100);
  CHECK(Windows(settings_of({"block", 0, 0, 4, 6}), 100).group() == 12);
  CHECK(Windows(settings_of({"block", 0, 0, 4, 6, true, false}), 100).group() == 4);
  CHECK(Windows(settings_of({"block", 0, 0, 4, 6, false, true}), 100).group() == 6);
  const Windows none(settings_of({"full", 4, 12, 4, 6, false, false}), 100);
  CHECK(none.boundary(Side::key, 99) == none.begin());
  CHECK(none.boundary(Side::value, 99) == none.begin());
}

TEST_CASE("D22 what KIVI's windows hold after T tokens, and block's", "[windows]") {
  const Windows kivi(settings_of({"kivi", 0, 128, 32, 1}), 300);
  const Windows block(settings_of({"block", 0, 128, 32, 1}), 300);
  const int64_t lengths[] = {127, 128, 129, 255, 256, 257};
  const int64_t keys[] = {127, 0, 1, 127, 0, 1};
  const int64_t values[] = {127, 128, 128, 128, 128, 128};
  for (int i = 0; i < 6; ++i) {
    CAPTURE(lengths[i]);
    CHECK(left(kivi, Side::key, lengths[i]) == keys[i]);
    CHECK(left(kivi, Side::value, lengths[i]) == values[i]);
    // Step T−1 itself reads its own token and what was there before it.
    const int64_t p = lengths[i] - 1;
    CHECK(p + 1 - kivi.boundary(Side::key, p) == p % 128 + 1);
    CHECK(p + 1 - kivi.boundary(Side::value, p) == std::min<int64_t>(lengths[i], 129));
    // block: min(T, R … R + G − 1) on both sides.
    const int64_t held = p + 1 - block.boundary(Side::key, p);
    CHECK(held == p + 1 - block.boundary(Side::value, p));
    CHECK(held >= std::min<int64_t>(lengths[i], 128));
    CHECK(held <= 128 + 31);
  }
}

TEST_CASE("D26 the golden table of KIVI's flush, R = G = 32", "[windows]") {
  const Windows windows(settings_of({"kivi", 0, 32, 32, 1}), 3 * 32 + 2);
  for (int64_t tokens = 0; tokens <= 3 * 32 + 2; ++tokens) {
    CAPTURE(tokens);
    CHECK(left(windows, Side::key, tokens) == tokens % 32);
    CHECK(windows.boundary(Side::key, tokens) == tokens - tokens % 32);
    CHECK(left(windows, Side::value, tokens) == std::min<int64_t>(tokens, 32));
    CHECK(windows.boundary(Side::value, tokens) == tokens - std::min<int64_t>(tokens, 32));
  }
}

TEST_CASE("D18 D19 every flush moves whole groups, also while decoding one by one", "[windows]") {
  for (const std::string flush : {"block", "full"}) {
    const Windows windows(settings_of({flush, 0, 128, 32, 1}), 1024);
    int64_t before = 0;
    for (int64_t p = 0; p < 1024; ++p) {
      const int64_t boundary = windows.boundary(Side::key, p);
      CHECK((boundary - before) % 32 == 0);
      CHECK(p + 1 - boundary <= 128 + 31);
      before = boundary;
    }
    CHECK(before == 896);  // 1,024 tokens were really quantized, all but R
  }
}

TEST_CASE("D23 D24 no window and a window longer than the sequence", "[windows]") {
  // R = 0 under kivi and full is block: everything but the own token's unfinished group is
  // quantized.
  for (const std::string flush : {"block", "full", "kivi"}) {
    const Windows windows(settings_of({flush, 0, 0, 32, 1}), 33);
    CHECK(windows.boundary(Side::key, 0) == 0);
    CHECK(windows.boundary(Side::key, 31) == 0);  // the own token is read in full precision
    CHECK(windows.boundary(Side::key, 32) == 32);
    CHECK(windows.boundary(Side::value, 32) == 32);
    CHECK(windows.cycle() == 32);
  }
  for (const int64_t sink : {0, 4}) {
    const Windows wide(settings_of({"block", sink, 4096, 32, 1}), 1400);
    CHECK(wide.boundary(Side::key, 1399) == sink);
    const Windows narrow(settings_of({"block", sink, 128, 32, 1}), 1400);
    CHECK(narrow.boundary(Side::key, 1399) == sink + 32 * ((1400 - sink - 128) / 32));
  }
}

TEST_CASE("D21 the span holds complete groups from the sink on", "[windows]") {
  CHECK(Windows(settings_of({"block", 0, 0, 32, 1}), 40).span_end() == 32);
  CHECK(Windows(settings_of({"block", 5, 0, 32, 1}), 40).span_end() == 37);
  CHECK(Windows(settings_of({"block", 9, 0, 32, 1}), 40).span_end() == 9);
  CHECK(Windows(settings_of({"block", 9, 0, 1, 1}), 40).span_end() == 40);
  CHECK(Windows(settings_of({"block", 0, 0, 4, 6}), 40).span_end() == 36);
  // A sequence shorter than its sink.
  const Windows shorter(settings_of({"block", 64, 0, 1, 1}), 40);
  CHECK(shorter.begin() == 40);
  CHECK(shorter.span_end() == 40);
  CHECK(shorter.boundary(Side::key, 39) == 40);
}

TEST_CASE("D25 windows and groups that do not fit are refused by name, before a run", "[windows]") {
  const auto refused = [](const Rule& rule) {
    method::Recipe recipe = method::preset("kivi");
    recipe.settings = settings_of(rule);
    return method::unsupported(recipe, 128).value_or("");
  };
  for (const std::string flush : {"full", "kivi"}) {
    CHECK_THAT(refused({flush, 0, 96, 64, 1}),
               ContainsSubstring("window.recent 96") && ContainsSubstring("64"));
    CHECK_THAT(refused({flush, 0, 16, 32, 1}),
               ContainsSubstring("window.recent 16") && ContainsSubstring("32"));
    CHECK_THAT(refused({flush, 0, 128, 256, 1}), ContainsSubstring("window.recent 128"));
    CHECK(refused({flush, 0, 128, 64, 1}).empty());
  }
  CHECK_THAT(refused({"kivi", 0, 64, 32, 32}), ContainsSubstring("values on axis token"));
  for (const std::string flush : {"block", "ring"}) {
    CHECK(refused({flush, 0, 96, 64, 1}).empty());
    CHECK(refused({flush, 0, 128, 256, 1}).empty());
  }
  // D = 96 with per-token groups of 64.
  method::Recipe recipe = method::preset("kivi");
  REQUIRE_FALSE(method::apply_edit(recipe, "value.codec.group", 64));
  CHECK_THAT(method::unsupported(recipe, 96).value_or(""),
             ContainsSubstring("64") && ContainsSubstring("96"));
}

TEST_CASE("bits at a length average over one period of the windows", "[windows]") {
  CHECK(Windows(settings_of({"full", 0, 128, 32, 1}), 1024).cycle() == 128);
  CHECK(Windows(settings_of({"kivi", 0, 128, 32, 1}), 1024).cycle() == 128);
  CHECK(Windows(settings_of({"block", 0, 128, 32, 1}), 1024).cycle() == 32);
  CHECK(Windows(settings_of({"block", 0, 128, 1, 1}), 1024).cycle() == 1);
  CHECK(Windows(settings_of({"ring", 0, 128, 1, 1}), 1024).cycle() == 8);
  CHECK(Windows(settings_of({"ring", 0, 128, 32, 1}), 1024).cycle() == 32);
  const Windows longer = Windows(settings_of({"block", 64, 0, 1, 1}), 40).at_length(8192);
  CHECK(longer.begin() == 64);
  CHECK(longer.boundary(Side::key, 8191) == 8191);
}
