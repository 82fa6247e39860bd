#include "cache/eviction.h"

#include <cmath>
#include <limits>

#include "catch.h"
#include "quant/plain_codec.h"

using namespace kvlab::cache;

namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

std::vector<int64_t> list(const at::Tensor& x) {
  return {x.const_data_ptr<int64_t>(), x.const_data_ptr<int64_t>() + x.numel()};
}

/// One query head, d = 1: logits are q_p·k_t.
at::Tensor column(const std::vector<float>& values) {
  return at::tensor(values).reshape({static_cast<int64_t>(values.size()), 1});
}

/// The same rule step by step over a set of tokens, in double.
std::vector<int64_t> plain_heavy(const at::Tensor& q, const at::Tensor& k,
                                 const EvictionRule& rule) {
  const int64_t tokens = k.size(0);
  std::vector<int64_t> dropped(static_cast<size_t>(tokens), kNever);
  std::vector<double> score(static_cast<size_t>(tokens), 0.0);
  const auto gone = [&](int64_t t, int64_t p) { return dropped[static_cast<size_t>(t)] <= p; };
  for (int64_t p = 0; p < tokens; ++p) {
    for (int64_t j = 0; j < q.size(0); ++j) {
      const at::Tensor logits =
          k.to(at::kDouble).mv(q[j][p].to(at::kDouble)) / std::sqrt(static_cast<double>(k.size(1)));
      double sum = 0.0;
      for (int64_t t = 0; t <= p; ++t) {
        if (!gone(t, p)) sum += std::exp(logits[t].item<double>());
      }
      for (int64_t t = 0; t <= p; ++t) {
        if (!gone(t, p)) score[static_cast<size_t>(t)] += std::exp(logits[t].item<double>()) / sum;
      }
    }
    while (true) {
      int64_t lowest = -1, count = 0;
      for (int64_t t = rule.sink; t < p + 2 - rule.recent; ++t) {
        if (gone(t, p + 1)) continue;
        ++count;
        if (lowest < 0 || score[static_cast<size_t>(t)] < score[static_cast<size_t>(lowest)]) {
          lowest = t;
        }
      }
      if (count <= rule.heavy) break;
      dropped[static_cast<size_t>(lowest)] = p + 1;
    }
  }
  return dropped;
}

}  // namespace

TEST_CASE("streaming keeps the first and the latest tokens", "[eviction]") {
  // Sink 1, recent 2: at step 3 tokens 0, 2, 3 are there, so token 1 goes at step 3.
  CHECK(list(streaming_evictions(5, {.sink = 1, .recent = 2, .heavy = 0})) ==
        std::vector<int64_t>{kNever, 3, 4, 5, 6});
}

TEST_CASE("heavy hitters by hand", "[eviction]") {
  // Keys 0, ln 3, 0, 0 and queries of 1; recent 1, one heavy token.
  // Step 0: scores {1}. Step 1 has tokens 0 and 1 with weights 1/4, 3/4: scores {5/4, 3/4}. At step
  // 2 both are behind the latest one and one may stay: token 1 goes at step 2.
  // Step 2 has tokens 0 and 2, half each: scores {7/4, 1/2}: token 2 goes at step 3.
  const at::Tensor q = column({1, 1, 1, 1}).unsqueeze(0);
  const at::Tensor k = column({0, std::log(3.f), 0, 0});
  CHECK(list(heavy_hitter_evictions(q, k, {.sink = 0, .recent = 1, .heavy = 1})) ==
        std::vector<int64_t>{kNever, 2, 3, 4});
}

TEST_CASE("heavy hitters agree with a step by step account, over blocks of queries", "[eviction]") {
  const at::Tensor q = plain::gaussian({3, 150, 8}, 40) * 2;
  const at::Tensor k = plain::gaussian({150, 8}, 41) * 2;
  for (const EvictionRule& rule : {EvictionRule{2, 10, 15}, EvictionRule{0, 1, 30},
                                   EvictionRule{0, 60, 0}, EvictionRule{4, 200, 3}}) {
    CHECK(list(heavy_hitter_evictions(q, k, rule)) == plain_heavy(q, k, rule));
  }
  // No heavy tokens: streaming.
  const EvictionRule rule{.sink = 3, .recent = 20, .heavy = 0};
  const at::Tensor heavy = heavy_hitter_evictions(q, k, rule);
  const at::Tensor streaming = streaming_evictions(150, rule);
  CHECK(at::equal(heavy.clamp_max(150), streaming.clamp_max(150)));
}
