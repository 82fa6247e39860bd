// The kernels' rule of when tokens are quantized against the cache's.

#include "cache/windows.h"
#include "catch.h"
#include "kvlab/kernels/windows.h"
#include "method/recipe.h"

using namespace kvlab;
using cache::Windows;
using kernels::Flush;
using kernels::WindowRule;

namespace {

struct Named {
  const char* name;
  Flush flush;
};

Settings settings_of(const WindowRule& rule, const char* flush) {
  Settings settings = method::preset("kivi").settings;
  settings["key.codec.axis"] = rule.group > 1 ? "channel" : "token";
  settings["key.codec.group"] = rule.group > 1 ? rule.group : 128;
  settings["value.codec.axis"] = "token";
  settings["window.sink"] = rule.sink;
  settings["window.recent"] = rule.recent;
  settings["window.flush"] = flush;
  return settings;
}

}  // namespace

TEST_CASE("D22 D26 the kernels' history ends where the cache's does, at every length",
          "[windows]") {
  for (const Named& named : {Named{"block", Flush::block}, Named{"full", Flush::full},
                             Named{"kivi", Flush::kivi}, Named{"ring", Flush::ring}}) {
    for (const int sink : {0, 1, 5, 64, 300}) {
      for (const int group : {1, 32, 128}) {
        for (const int recent : {0, 1, 7, 32, 128, 384}) {
          const bool whole = named.flush == Flush::full || named.flush == Flush::kivi;
          if (whole && recent % group != 0) continue;  // refused by the recipe's rules
          const WindowRule rule{named.flush, sink, recent, group};
          for (int tokens = 1; tokens <= 700; ++tokens) {
            const Windows windows(settings_of(rule, named.name), tokens);
            const kernels::HistoryEnds ends = kernels::history_ends(rule, tokens);
            CAPTURE(named.name, sink, group, recent, tokens);
            REQUIRE(ends.key == windows.boundary(Windows::Side::key, tokens - 1));
            REQUIRE(ends.value == windows.boundary(Windows::Side::value, tokens - 1));
            // What a step of one token leaves full-precision fits the ring.
            REQUIRE(tokens - std::min(ends.key, ends.value) <= kernels::recent_capacity(rule, 1));
          }
        }
      }
    }
  }
}
