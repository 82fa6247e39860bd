// Which tokens a probe reads: no other sequence's, no later one, and of the past what the windows
// say.
#include <cmath>
#include <limits>

#include "catch.h"
#include "metrics/cases.h"

using namespace kvlab;
using cases::gaussian_sample;
using cases::recipe;
using cases::run;
using cases::scalar;
using cases::Shape;

TEST_CASE("D30 one sequence of a batch does not touch another", "[metrics]") {
  for (const char* id : {"kivi", "oscar_ots", "quarot_windows"}) {
    CAPTURE(id);
    Shape shape = {2, 2, 4, 96, 32};
    data::Sample both = gaussian_sample(shape, 280, {50, 95});
    both.k[1].mul_(100);
    both.v[1].mul_(100);
    data::Sample one = both;
    one.q = both.q.narrow(0, 0, 1);
    one.k = both.k.narrow(0, 0, 1);
    one.v = both.v.narrow(0, 0, 1);
    const method::Recipe method = recipe(id, {{"window.recent", 32}, {"window.sink", 0}});
    const metrics::Measured batch = run(both, method);
    const metrics::Measured alone = run(one, method);
    for (const char* name : {"k_se", "v_se", "k_norm", "v_norm"}) {
      CHECK(at::equal(batch.tokens.at(name)[0].nan_to_num(-1),
                      alone.tokens.at(name)[0].nan_to_num(-1)));
    }
    CHECK(at::equal(batch.tokens.at("out_se")[0], alone.tokens.at("out_se")[0]));
    CHECK(scalar(batch, "bits_per_element") == scalar(alone, "bits_per_element"));
  }
}

TEST_CASE("D62 grouped queries read their KV head as if it were repeated", "[metrics]") {
  const auto [q_heads, kv_heads] = GENERATE(
      table<int64_t, int64_t>({{40, 8}, {24, 4}, {28, 4}, {64, 4}, {32, 32}, {8, 1}, {6, 1}}));
  CAPTURE(q_heads, kv_heads);
  const data::Sample grouped = gaussian_sample({1, kv_heads, q_heads, 64, 16}, 290, {40, 63});
  data::Sample repeated = grouped;
  const int64_t share = q_heads / kv_heads;
  repeated.k = grouped.k.repeat_interleave(share, 1);
  repeated.v = grouped.v.repeat_interleave(share, 1);
  const method::Recipe method = recipe("kivi", {{"window.recent", 32}});
  const metrics::Measured shared = run(grouped, method);
  const metrics::Measured full = run(repeated, method);
  for (const char* name :
       {"logit_mse", "attn_kl", "attn_top1", "out_rel", "out_rel_k", "out_rel_v", "out_cos"}) {
    CAPTURE(name);
    CHECK(shared.metrics.at(name).size(0) == q_heads);
    CHECK(at::equal(shared.metrics.at(name), full.metrics.at(name)));
  }
  CHECK(scalar(shared, "wo_rel") == scalar(full, "wo_rel"));
  CHECK(shared.metrics.at("k_mse").size(0) == kv_heads);
}

TEST_CASE("no future token enters a probe, under any flush rule", "[metrics]") {
  struct Case {
    const char* preset;
    Settings edits;
  };
  const auto c = GENERATE(values<Case>(
      {{"kivi", {{"key.codec.group", 8}, {"value.codec.group", 8}, {"window.recent", 16}}},
       {"oscar_ots", {{"group", 8}, {"window.recent", 16}, {"window.sink", 3}}},
       {"kcvt_base", {{"group", 8}, {"window.flush", "block"}, {"window.recent", 5}}},
       {"quarot_windows", {{"window.sink", 4}, {"window.recent", 10}}},
       {"quarot_token", {{"window.flush", "ring"}, {"window.recent", 9}}},
       {"int2_naive", {}}}));
  CAPTURE(c.preset);
  const method::Recipe method = recipe(c.preset, c.edits);
  const data::Sample sample = gaussian_sample({1, 2, 4, 72, 16}, 300);
  const metrics::Measured before = run(sample, method, {"tokens"});
  bool any_change = false;
  for (const int64_t j : {1, 9, 30, 31, 32, 47, 71}) {
    CAPTURE(j);
    data::Sample changed = sample;
    changed.k = sample.k.clone();
    changed.v = sample.v.clone();
    for (int64_t head = 0; head < 2; ++head) {
      changed.k[0][head][j].mul_(-7).add_(2);
      changed.v[0][head][j].mul_(-7).add_(2);
    }
    const metrics::Measured after = run(changed, method, {"tokens"});
    for (const char* name : {"out_se", "out_ss"}) {
      const at::Tensor was = before.tokens.at(name), is = after.tokens.at(name);
      CHECK(at::equal(was.narrow(2, 0, j), is.narrow(2, 0, j)));
    }
    // The probe of the token itself does see it.
    CHECK_FALSE(
        at::equal(before.tokens.at("out_ss").select(2, j), after.tokens.at("out_ss").select(2, j)));
    any_change |= !at::equal(before.tokens.at("out_se").narrow(2, j, 72 - j),
                             after.tokens.at("out_se").narrow(2, j, 72 - j));
  }
  CHECK(any_change);
}

TEST_CASE("D20 D39 a probe finds the same whatever comes after it", "[metrics]") {
  // T = 160 in one sample, and cut short after every probe: decoding in any number of calls reads
  // the same codes.
  for (const char* id : {"kivi", "oscar_ots", "quarot_windows"}) {
    CAPTURE(id);
    const method::Recipe method = recipe(id, {{"window.recent", 32}, {"window.sink", 0}});
    const data::Sample whole = gaussian_sample({1, 2, 4, 160, 32}, 310);
    const metrics::Measured all = run(whole, method, {"tokens"});
    for (const int64_t tokens : {1, 7, 31, 32, 33, 64, 96, 153, 160}) {
      CAPTURE(tokens);
      data::Sample part = whole;
      part.k = whole.k.narrow(2, 0, tokens);
      part.v = whole.v.narrow(2, 0, tokens);
      part.q = whole.q.narrow(2, 0, tokens);
      part.positions = whole.positions.narrow(0, 0, tokens);
      const metrics::Measured shorter = run(part, method, {"tokens"});
      // Sums over fewer tokens are taken in another order; a code that differs would show at 1e-2.
      CHECK(at::allclose(shorter.tokens.at("out_se"), all.tokens.at("out_se").narrow(2, 0, tokens),
                         1e-9, 1e-15));
      CHECK(at::allclose(shorter.tokens.at("out_ss"), all.tokens.at("out_ss").narrow(2, 0, tokens),
                         1e-9, 1e-15));
    }
  }
}

TEST_CASE("D18 decoding token by token quantizes keys as a prefill does", "[metrics]") {
  // Prefill 32, then 168 single steps, G = R = 32: the error of the history is that of groups of
  // 32, not of 1.
  const auto [grid, expected] =
      GENERATE(table<std::string, double>({{"float_zero", 0.154}, {"rounded_zero", 0.165}}));
  const data::Sample sample = gaussian_sample({1, 16, 16, 200, 128}, 320, {199});
  const metrics::Measured measured =
      run(sample,
          recipe("kivi",
                 {{"window.recent", 32}, {"key.codec.grid", grid}, {"key.codec.params", "fp32"}}));
  CHECK(scalar(measured, "k_mse") == Approx(expected).epsilon(0.05));
  CHECK(measured.hist_key[1] == 192);
}

TEST_CASE("D95 as many tokens are decoded as the windows say", "[metrics]") {
  const Shape shape = {2, 2, 4, 96, 32};
  const metrics::Measured measured =
      run(gaussian_sample(shape, 330, {60, 95}),
          recipe("kivi", {{"window.recent", 32}, {"window.sink", 5}}));
  // [5, 5 + 32·⌊91/32⌋) on both sides.
  for (const char* name : {"k_se", "v_se"}) {
    CHECK(measured.tokens.at(name).isnan().logical_not().sum().item<int64_t>() == 2 * 2 * 64);
    CHECK(measured.tokens.at(name).gt(0).sum().item<int64_t>() == 2 * 2 * 64);
  }
  CHECK(measured.hist_key[0] == 5);
  CHECK(measured.hist_key[1] == 5 + 64);
  CHECK(measured.hist_value[1] == 95 - 32);
  CHECK(scalar(measured, "bytes_codes") == 2 * 2 * 8 * (64 + 58));  // 8 = 32 channels of 2 bits
  CHECK(scalar(measured, "wo_rel") > 0.05);                         // attention did read them
}

TEST_CASE("D97 errors are kept by position", "[metrics]") {
  const data::Sample sample = gaussian_sample({1, 2, 4, 96, 32}, 350);
  const metrics::Measured measured = run(sample, recipe("kivi", {{"window.recent", 32}}));
  const at::Tensor errors = measured.tokens.at("out_se");
  REQUIRE(errors.sizes() == at::IntArrayRef({1, 4, 96}));
  // Nothing is quantized at the first 32 probes, and everywhere after.
  CHECK(errors.narrow(2, 0, 32).eq(0).all().item<bool>());
  CHECK(errors.narrow(2, 32, 64).gt(0).all().item<bool>());
  // The parts add up to the metric.
  const double relative =
      std::sqrt((errors.sum() / measured.tokens.at("out_ss").sum()).item<double>());
  CHECK(relative == Approx(std::sqrt((measured.metrics.at("out_rel").square() *
                                      measured.tokens.at("out_ss").sum(2)[0])
                                         .sum()
                                         .item<double>() /
                                     measured.tokens.at("out_ss").sum().item<double>()))
                        .epsilon(1e-10));
}

TEST_CASE("D55 NaN in a token behind all probes changes nothing", "[metrics]") {
  const method::Recipe method = recipe("kivi", {{"window.recent", 32}});
  const data::Sample sample = gaussian_sample({1, 2, 4, 96, 32}, 360, {30, 70});
  data::Sample poisoned = sample;
  poisoned.k = sample.k.clone();
  poisoned.v = sample.v.clone();
  poisoned.k.narrow(2, 71, 25).fill_(std::numeric_limits<double>::quiet_NaN());
  poisoned.v.narrow(2, 71, 25).fill_(std::numeric_limits<double>::quiet_NaN());
  const metrics::Measured clean = run(sample, method, {"attention"});
  const metrics::Measured measured = run(poisoned, method, {"attention"});
  for (const char* name : {"logit_mse", "attn_kl", "attn_top1", "out_rel", "out_rel_k", "out_rel_v",
                           "out_cos", "wo_rel"}) {
    CAPTURE(name);
    CHECK(at::allclose(measured.metrics.at(name), clean.metrics.at(name), 1e-12, 0));
  }
}
