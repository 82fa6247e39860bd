// Stages that look at tokens: keys before RoPE, pools, evictions, dynamic windows, adaptive scales.
#include <cmath>

#include "cache/schedule.h"
#include "catch.h"
#include "data/pre_rope.h"
#include "metrics/cases.h"

using namespace kvlab;
using cases::recipe;
using cases::run;
using cases::scalar;

namespace {

data::Sample full_sample(const cases::Shape& shape, uint64_t seed,
                         std::vector<int64_t> positions = {}) {
  return cases::with_more(cases::gaussian_sample(shape, seed, std::move(positions)), seed + 9);
}

at::Tensor token_errors(const metrics::Measured& measured, const char* name = "k_se") {
  return measured.tokens.at(name);
}

}  // namespace

TEST_CASE("before RoPE the codec sees k_pre and attention reads turned keys", "[stages]") {
  const data::Sample sample = full_sample({1, 2, 4, 96, 32}, 1);
  const metrics::Measured before = run(sample, recipe("int2_naive", {{"key.space", "pre_rope"}}));
  // The same quantizer on the keys before RoPE, measured there: RoPE keeps the length of an error.
  data::Sample turned_back = sample;
  turned_back.k = sample.more.k_pre();
  const metrics::Measured plain_keys = run(turned_back, recipe("int2_naive"));
  CHECK(at::allclose(token_errors(before), token_errors(plain_keys), 1e-3, 1e-6));
  CHECK(scalar(before, "tni_ratio_in") == Approx(scalar(plain_keys, "tni_ratio_in")).epsilon(1e-9));
  const metrics::Measured after = run(sample, recipe("int2_naive"));
  CHECK_FALSE(at::allclose(token_errors(before), token_errors(after), 1e-2, 1e-2));
  // At 8 bits it is the identity: a RoPE that is missing or applied twice would not be.
  const metrics::Measured fine = run(
      sample, recipe("int2_naive",
                     {{"key.space", "pre_rope"}, {"key.codec.bits", 8}, {"value.codec.bits", 8}}));
  CHECK(scalar(fine, "k_nmse") < 1e-4);
  CHECK(scalar(fine, "wo_rel") < 0.02);

  CHECK_THROWS_AS(run(cases::gaussian_sample({1, 2, 4, 96, 32}, 1),
                      recipe("int2_naive", {{"key.space", "pre_rope"}})),
                  Unsupported);
}

TEST_CASE("an evicted token has the probability 0 and leaves the errors, by hand", "[stages]") {
  // One head, d = 8 of which one channel is used, keys 0: every weight is 1/n. Values 1, 2, 3, 4.
  data::Sample sample;
  sample.k = at::zeros({1, 1, 4, 8});
  sample.q = at::ones({1, 1, 2, 8});
  sample.v = at::zeros({1, 1, 4, 8});
  for (int64_t t = 0; t < 4; ++t) sample.v[0][0][t][0] = static_cast<double>(t + 1);
  sample.positions = at::tensor({2, 3}, at::kLong);
  const metrics::Measured measured =
      run(sample,
          recipe("bf16", {{"evict.kind", "streaming"}, {"evict.sink", 1}, {"evict.recent", 2}}));
  // Step 2 has all three tokens: no error. Step 3 has tokens 0, 2, 3: 8/3 in place of 10/4.
  const at::Tensor error = measured.tokens.at("out_se").flatten();
  CHECK(error[0].item<double>() == 0.0);
  CHECK(error[1].item<double>() == Approx(std::pow(8.0 / 3 - 2.5, 2)).epsilon(1e-12));
  CHECK(std::isinf(scalar(measured, "attn_kl")));
  CHECK(scalar(measured, "logit_mse") == 0.0);
  CHECK(scalar(measured, "evicted_tokens") == 1.0);
  // fp32 data of one head: 3 tokens of 8 values on each side, over 4 tokens.
  CHECK(scalar(measured, "bits_per_element") == 32.0 * 3 / 4);
  CHECK(scalar(run(sample, recipe("bf16")), "evicted_tokens") == 0.0);
}

TEST_CASE("eviction with codes: bytes, errors and the same error parts as without", "[stages]") {
  const data::Sample sample = full_sample({2, 2, 4, 96, 32, DType::bf16}, 11, {40, 95});
  const Settings streaming = {{"evict.kind", "streaming"}, {"evict.sink", 4}, {"evict.recent", 28}};
  const metrics::Measured kept = run(sample, recipe("saw_int4", streaming));
  const metrics::Measured whole = run(sample, recipe("saw_int4"));
  CHECK(scalar(kept, "evicted_tokens") == 64.0);
  // 32 tokens left, one of them the own one at 16 bits; codes of 4 bits, two halves a head row.
  CHECK(scalar(kept, "bytes_codes") == 2.0 * 31 * 2 * 2 * 32 / 2);
  CHECK(scalar(kept, "bytes_params") == 2.0 * 31 * 2 * 2 * 4);
  CHECK(scalar(kept, "bytes_window") == 2.0 * 1 * 2 * 2 * 32 * 2);
  const at::Tensor errors = token_errors(kept);
  CHECK(at::isnan(errors).sum(-1).eq(64).all().item<bool>());
  const at::Tensor there = at::isfinite(errors);
  CHECK(at::equal(errors.masked_select(there), token_errors(whole).masked_select(there)));
  CHECK(scalar(kept, "wo_rel") > scalar(whole, "wo_rel"));

  Settings heavy = streaming;
  heavy["evict.kind"] = "heavy_hitter";
  heavy["evict.heavy"] = 10;
  const metrics::Measured scored = run(sample, recipe("saw_int4", heavy));
  CHECK(scalar(scored, "evicted_tokens") == 54.0);
  // Ten more tokens, and a score of 4 bytes for all 42 of each head and sequence.
  CHECK(scalar(scored, "bytes_params") == 2.0 * 41 * 2 * 2 * 4 + 4.0 * 42 * 2 * 2);
  CHECK(scalar(scored, "bits_at_128k") < 0.01);

  data::Sample few = sample;
  few.more.every_query = []() -> at::Tensor { throw Unsupported("2 of 96"); };
  CHECK_THROWS_WITH(run(few, recipe("saw_int4", heavy)), "2 of 96");
}

TEST_CASE("pool tokens are exact, billed, and do not shape their group", "[stages]") {
  data::Sample sample = full_sample({1, 2, 4, 96, 32, DType::bf16}, 21, {95});
  sample.k[0].select(1, 5).mul_(0.01);   // the smallest keys of all
  sample.k[0].select(1, 70).mul_(0.02);  // and the next
  const Settings off = {{"group", 32}, {"window.recent", 32}};
  Settings on = off;
  on["protect.kind"] = "low_norm";
  on["protect.tokens"] = 2;
  const metrics::Measured plain_run = run(sample, recipe("kivi", off));
  const metrics::Measured pooled = run(sample, recipe("kivi", on));
  for (const char* name : {"k_se", "v_se"}) {
    for (const int64_t token : {5, 70}) {
      CHECK(token_errors(pooled, name)[0].select(1, token).eq(0).all().item<bool>());
      CHECK(token_errors(plain_run, name)[0].select(1, token).gt(0).all().item<bool>());
    }
  }
  // Two exact tokens of two sides, and 4 bytes for the place of each.
  CHECK(scalar(pooled, "bytes_window") - scalar(plain_run, "bytes_window") == 2.0 * 2 * 2 * 32 * 2);
  CHECK(scalar(pooled, "bytes_params") - scalar(plain_run, "bytes_params") == 2.0 * 4);

  // A member as loud as can be leaves the others' codes as they are without it: here by the largest
  // hidden state, so that the members are the same.
  data::Sample quiet = sample;
  quiet.more.hidden_absmax = [] {
    at::Tensor hidden = at::zeros({1, 96});
    hidden[0][5] = 1.0;
    hidden[0][70] = 0.5;
    return hidden;
  };
  data::Sample loud = quiet;
  loud.k = quiet.k.clone();
  loud.k[0].select(1, 5).mul_(1e6);
  Settings massive = on;
  massive["protect.kind"] = "massive";
  CHECK(at::allclose(token_errors(run(loud, recipe("kivi", massive))),
                     token_errors(run(quiet, recipe("kivi", massive))), 0, 0, /*equal_nan=*/true));
  CHECK(scalar(run(loud, recipe("kivi", off)), "k_mse") >
        5 * scalar(run(loud, recipe("kivi", massive)), "k_mse"));

  // Without hidden states the first tokens stay, and the row says so.
  data::Sample bare = sample;
  bare.more.hidden_absmax = []() -> at::Tensor { throw Unsupported("no hidden states"); };
  const metrics::Measured first = run(bare, recipe("kivi", massive));
  REQUIRE(first.notes.size() == 1);
  CHECK_THAT(first.notes[0], ContainsSubstring("position-selected"));
  CHECK(token_errors(first)[0].narrow(1, 0, 2).eq(0).all().item<bool>());
}

TEST_CASE("a dynamic window keeps an uneven block longer, by hand", "[stages]") {
  // Blocks of 4 from token 1 on, d = 1, norms 1 but for token 6 (block 1) of norm 5.
  data::Sample sample;
  sample.k = at::ones({1, 1, 30, 4});
  sample.k[0][0][6] = 5.0;
  sample.v = sample.k;
  sample.q = at::ones({1, 1, 1, 4});
  sample.positions = at::tensor({29}, at::kLong);
  const method::Recipe method = recipe("kcvt_base", {{"group", 4},
                                                     {"window.flush", "dynamic"},
                                                     {"window.sink", 1},
                                                     {"window.tni", 2.0},
                                                     {"window.min", 3},
                                                     {"window.max", 9}});
  const cache::Schedule schedule(method.settings, sample);
  const auto boundary = [&](int64_t p) {
    return schedule.boundary(cache::Schedule::Side::key, 0, p);
  };
  // Block 0 = tokens 1..4 leaves with 3 behind it: step 7. Block 1 = 5..8 with 9: step 17. Block 2
  // = 9..12 would leave at step 15 but waits for block 1. Block 3 = 13..16: step 19.
  CHECK(boundary(6) == 1);
  CHECK(boundary(7) == 5);
  CHECK(boundary(16) == 5);
  CHECK(boundary(17) == 13);
  CHECK(boundary(18) == 13);
  CHECK(boundary(19) == 17);
  CHECK(boundary(29) == 25);
  // Even everywhere it is `block` with R = min.
  sample.k[0][0][6] = 1.9;
  const cache::Schedule even(method.settings, sample);
  const cache::Windows block(
      recipe("kcvt_base",
             {{"group", 4}, {"window.flush", "block"}, {"window.sink", 1}, {"window.recent", 3}})
          .settings,
      30);
  for (int64_t p = 0; p < 30; ++p) {
    CHECK(even.boundary(cache::Schedule::Side::value, 0, p) ==
          block.boundary(cache::Windows::Side::value, p));
  }
}

TEST_CASE("sequences of a batch flush by their own norms", "[stages]") {
  data::Sample sample = cases::gaussian_sample({2, 2, 4, 128, 32, DType::bf16}, 31, {127});
  sample.k[1].select(1, 40).mul_(50);  // block 1 of the second sequence
  const method::Recipe method = recipe(
      "kcvt_base",
      {{"window.flush", "dynamic"}, {"window.tni", 3.0}, {"window.min", 0}, {"window.max", 512}});
  const metrics::Measured both = run(sample, method);
  CHECK(both.hist_key[1] == 32);  // the shorter one
  data::Sample one = sample;
  for (at::Tensor* x : {&one.q, &one.k, &one.v}) *x = x->narrow(0, 0, 1);
  data::Sample two = sample;
  for (at::Tensor* x : {&two.q, &two.k, &two.v}) *x = x->narrow(0, 1, 1);
  const metrics::Measured first = run(one, method);
  const metrics::Measured second = run(two, method);
  CHECK(first.hist_key[1] == 96);  // the own token is never in the history
  CHECK(second.hist_key[1] == 32);
  for (const char* name : {"bits_per_element", "bytes_window", "bytes_codes"}) {
    const double sum = scalar(first, name) + scalar(second, name);
    CHECK(scalar(both, name) == Approx(name == std::string("bits_per_element") ? sum / 2 : sum));
  }
  CHECK(at::equal(both.tokens.at("out_se")[1], second.tokens.at("out_se")[0]));
}

TEST_CASE("adaptive token scales are counted token by token", "[stages]") {
  data::Sample sample = cases::gaussian_sample({1, 2, 4, 65, 32, DType::bf16}, 41, {64});
  sample.k.narrow(2, 0, 10).mul_(0.01);
  const auto bytes = [&](const char* params) {
    return scalar(run(sample,
                      recipe("int2_naive", {{"key.token_scale", "l2_heads"},
                                            {"key.token_scale_params", params},
                                            {"key.token_scale_threshold", 1.0}}),
                      {"memory"}),
                  "bytes_scales");
  };
  CHECK(bytes("fp32") == 64 * 4);
  CHECK(bytes("fp8_e4m3") == 64);
  CHECK(bytes("int8") == 64);
  // Ten small tokens at 17 bits, 54 at 9.
  CHECK(bytes("adaptive") == std::ceil((10 * 17 + 54 * 9) / 8.0));
}

TEST_CASE("the new methods run, say what they need, and are near the identity at 8 bits",
          "[stages]") {
  const data::Sample sample = full_sample({1, 4, 8, 512, 32}, 51, {300, 511});
  const data::Sample calibration = full_sample({1, 4, 8, 512, 32}, 61);
  for (const char* id : {"ott", "rotatekv", "saw_int4", "oscar2", "streaming_int4", "h2o_int4"}) {
    CAPTURE(id);
    Settings edits;
    for (const std::string side : {"key", "value"}) {
      edits[side + ".codec.bits"] = 8;
      edits[side + ".codec.params"] = "fp32";
      edits[side + ".codec.clip"] = "none";
    }
    // A token that loses its place in a pool has codes that its own range did not shape.
    edits["protect.kind"] = "none";
    const metrics::Measured fine = run(sample, recipe(id, edits), cases::kAll, &calibration);
    CHECK(scalar(fine, "k_nmse") < 7.0 * 7.0 / (254 * 254) / 12 * 1.1);
    CHECK(scalar(fine, "wo_rel") < 0.02);
    const metrics::Measured coarse = run(sample, recipe(id), cases::kAll, &calibration);
    CHECK(scalar(coarse, "k_nmse") > 1e-4);
    CHECK(scalar(coarse, "k_nmse") < 1.0);
  }
  // Order and one Hadamard matrix over four heads both do something, and both come back.
  const auto error = [&](const Settings& edits) {
    return scalar(run(sample, recipe("rotatekv", edits), {"error"}, &calibration), "k_mse");
  };
  CHECK(error({}) != error({{"key.reorder", "none"}}));
  CHECK(error({}) != error({{"key.reorder", "abs_max"}}));
  CHECK(error({}) != error({{"key.rotate_heads", 2}}));
  CHECK(error({}) != error({{"key.rotate", "signed_hadamard"}}));
  CHECK(error({}) != error({{"key.space", "post_rope"}}));
}

TEST_CASE("a basis on both sides is near the identity at 8 bits and differs at 2", "[stages]") {
  data::Sample sample = full_sample({1, 2, 4, 256, 32}, 71, {255});
  data::Sample calibration = full_sample({1, 2, 4, 600, 32}, 72);
  calibration.w_o = plain::gaussian({64, 4 * 32}, 73);
  const auto measured = [&](const char* basis, int bits, const char* rotate) {
    const bool both = basis == std::string("balanced");
    const Settings edits = {{"key.basis", basis},        {"value.basis", both ? basis : "none"},
                            {"key.rotate", rotate},      {"value.rotate", rotate},
                            {"key.codec.bits", bits},    {"value.codec.bits", bits},
                            {"key.codec.params", "fp32"}};
    return run(sample, recipe("int2_naive", edits), cases::kAll, &calibration);
  };
  for (const char* basis : {"query_pca", "balanced"}) {
    for (const char* rotate : {"none", "hadamard"}) {
      CAPTURE(basis, rotate);
      CHECK(scalar(measured(basis, 8, rotate), "k_nmse") < 2e-4);
      CHECK(scalar(measured(basis, 8, rotate), "v_nmse") < 2e-4);
      // Matrix and inverse of two heads a side.
      const double sides = basis == std::string("balanced") ? 2 : 1;
      CHECK(scalar(measured(basis, 2, rotate), "rotation_bytes") == sides * 2 * 2 * 32 * 32 * 4);
    }
    CHECK(scalar(measured(basis, 2, "none"), "k_mse") !=
          scalar(measured(basis, 2, "hadamard"), "k_mse"));
  }
  CHECK(method::unsupported(recipe("int2_naive", {{"value.basis", "query_pca"}}), 32).has_value());
  calibration.w_o = at::Tensor();
  CHECK_THROWS_AS(measured("balanced", 2, "none"), Unsupported);
}
