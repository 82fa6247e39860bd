#include "cache/kv_cache.h"

#include <fmt/format.h>

#include "cache/reference_cache.h"
#include "catch.h"
#include "metrics/cases.h"

using namespace kvlab;
using cache::KvCache;
using cases::recipe;
using plain::ReferenceCache;
using Side = cache::Windows::Side;

namespace {

struct Case {
  std::string preset;
  Settings edits;
};

/// Every flush rule, both axes, every kind of transform.
const std::vector<Case> kCases = {
    {"bf16", {}},
    {"int2_naive", {}},
    {"int2_naive_symmetric", {{"window.sink", 3}}},
    {"int2_naive_windows", {{"window.sink", 5}, {"window.recent", 17}}},
    {"int2_naive_windows",
     {{"window.sink", 4}, {"window.recent", 9}, {"window.flush", "ring"}, {"group", 32}}},
    {"kivi", {{"window.recent", 64}}},
    {"kivi", {{"window.recent", 32}, {"window.sink", 7}, {"key.codec.bits", 4}}},
    {"kcvt_base", {{"window.recent", 64}, {"window.sink", 2}}},
    {"oscar_ots", {{"window.recent", 32}}},
    {"oscar_ots",
     {{"window.flush", "block"},
      {"window.recent", 5},
      {"key.norm_op", "rsqrt"},
      {"key.token_scale", "l2_head"},
      {"key.token_scale_params", "fp16"}}},
    {"quarot_windows_centered", {{"window.sink", 1}, {"window.recent", 3}}},
    {"oscar_cov_centered",
     {{"window.sink", 0}, {"window.recent", 8}, {"key.codec.clip_source", "calibrated"}}},
};

data::Sample sample_of(int64_t batch, int64_t tokens, int64_t d, uint64_t seed) {
  return cases::gaussian_sample({batch, 2, 4, tokens, d, DType::bf16}, seed);
}

KvCache::Shape shape_of(const data::Sample& sample) {
  return {sample.batch(), sample.kv_heads(), sample.head_dim(), sample.tokens(), sample.dtype};
}

/// Share of elements that are further apart than rounding explains: codes at ties.
double share_apart(const at::Tensor& found, const at::Tensor& expected) {
  const at::Tensor wide = found.to(at::kDouble);
  const at::Tensor near = (wide - expected).abs() <= 2e-5 * (1 + expected.abs());
  return 1 - near.to(at::kDouble).mean().item<double>();
}

double relative(const at::Tensor& found, const at::Tensor& expected) {
  return ((found.to(at::kDouble) - expected).norm() / expected.norm()).item<double>();
}

/// Queries of token p of all sequences, [B, Hq, 1, d].
at::Tensor query(const data::Sample& sample, int64_t p) { return sample.q.narrow(2, p, 1); }

void check_step(const KvCache& packed, const ReferenceCache& reference, const data::Sample& sample,
                int64_t tokens) {
  CAPTURE(tokens);
  const at::Tensor q = query(sample, tokens - 1);
  const at::Tensor output = packed.attend(q).output;
  for (int64_t b = 0; b < sample.batch(); ++b) {
    CHECK(relative(output[b].squeeze(1), reference.attend(q[b].squeeze(1), b, tokens)) < 2e-3);
  }
}

}  // namespace

TEST_CASE("every decoding step reads what the reference cache reads", "[cache]") {
  const int64_t d = GENERATE(64, 128);
  const size_t index = GENERATE(range(size_t{0}, kCases.size()));
  const Case& one = kCases[index];
  CAPTURE(d, index, one.preset);
  const method::Recipe method = recipe(one.preset, one.edits);
  const data::Sample sample = sample_of(2, 150, d, 900 + index);
  const calibrate::Prepared prepared = plain::prepared(method, sample);
  const ReferenceCache reference(method, prepared, sample);

  KvCache packed(method, prepared, shape_of(sample), "cpu");
  const int64_t prefilled = 41;
  packed.prefill(sample.k.narrow(2, 0, prefilled), sample.v.narrow(2, 0, prefilled));
  check_step(packed, reference, sample, prefilled);
  for (int64_t p = prefilled; p < sample.tokens(); ++p) {
    packed.append(sample.k.narrow(2, p, 1), sample.v.narrow(2, p, 1));
    if (p % 3 == 0 || p + 1 == sample.tokens()) check_step(packed, reference, sample, p + 1);
  }
  CHECK(packed.tokens() == std::vector<int64_t>(2, sample.tokens()));
  const KvCache::Tokens all = packed.dequantize();
  CHECK(share_apart(all.k, reference.read(Side::key, sample.tokens())) < 2e-3);
  CHECK(share_apart(all.v, reference.read(Side::value, sample.tokens())) < 2e-3);
}

TEST_CASE("a prefill, steps of several tokens and single ones leave the same cache", "[cache]") {
  const method::Recipe method = recipe("oscar_ots", {{"window.recent", 32}, {"window.sink", 3}});
  const data::Sample sample = sample_of(1, 131, 64, 940);
  const calibrate::Prepared prepared = plain::prepared(method, sample);
  const auto make = [&] { return KvCache(method, prepared, shape_of(sample), "cpu"); };
  KvCache whole = make();
  whole.prefill(sample.k, sample.v);
  KvCache stepped = make();
  for (int64_t p = 0; p < sample.tokens();) {
    const int64_t n = std::min<int64_t>(1 + p % KvCache::kMostStep, sample.tokens() - p);
    stepped.append(sample.k.narrow(2, p, n), sample.v.narrow(2, p, n));
    p += n;
  }
  CHECK(at::equal(whole.dequantize().k, stepped.dequantize().k));
  CHECK(at::equal(whole.dequantize().v, stepped.dequantize().v));
  CHECK(whole.bytes().all() == stepped.bytes().all());
}

TEST_CASE("ten thousand decoding steps in a row read what the reference cache reads", "[cache]") {
  const method::Recipe method = recipe("oscar_ots");
  data::Sample sample = cases::gaussian_sample({1, 1, 2, 10000, 64, DType::bf16}, 950);
  const calibrate::Prepared prepared = plain::prepared(method, sample);
  const ReferenceCache reference(method, prepared, sample);
  KvCache packed(method, prepared, shape_of(sample), "cpu");
  for (int64_t p = 0; p < sample.tokens(); ++p) {
    packed.append(sample.k.narrow(2, p, 1), sample.v.narrow(2, p, 1));
    if (p % 397 == 0 || p + 1 == sample.tokens()) check_step(packed, reference, sample, p + 1);
  }
  const KvCache::Tokens all = packed.dequantize();
  CHECK(share_apart(all.k, reference.read(Side::key, sample.tokens())) < 2e-3);
  CHECK(share_apart(all.v, reference.read(Side::value, sample.tokens())) < 2e-3);
}

TEST_CASE("sequences of unequal lengths, one of them empty", "[cache]") {
  const method::Recipe method = recipe("kivi", {{"window.recent", 32}});
  const data::Sample sample = sample_of(3, 120, 128, 960);
  const calibrate::Prepared prepared = plain::prepared(method, sample);
  const ReferenceCache reference(method, prepared, sample);
  KvCache packed(method, prepared, shape_of(sample), "cpu");
  packed.prefill(sample.k, sample.v, {120, 0, 77});
  const at::Tensor q = query(sample, 119);
  const KvCache::Attended attended = packed.attend(q, /*log_sum_exp=*/true);
  CHECK(relative(attended.output[0].squeeze(1), reference.attend(q[0].squeeze(1), 0, 120)) < 2e-3);
  CHECK(relative(attended.output[2].squeeze(1), reference.attend(q[2].squeeze(1), 2, 77)) < 2e-3);
  CHECK(attended.output[1].eq(0).all().item<bool>());
  CHECK(attended.log_sum_exp[1].eq(-std::numeric_limits<float>::infinity()).all().item<bool>());
  const at::Tensor logits =
      (q[2][3].to(at::kDouble) * reference.read(Side::key, 77)[2][1]).sum(-1).div(std::sqrt(128.0));
  CHECK(attended.log_sum_exp[2][3][0].item<double>() ==
        Approx(logits.logsumexp(0).item<double>()).epsilon(1e-4));
}

TEST_CASE("bytes held add up to what was allocated, by hand", "[cache]") {
  // 200 tokens, sink 8, recent 64 block, per-channel keys G 32: history 200 − 8 − 64 = 128 tokens.
  const method::Recipe method =
      recipe("oscar_ots", {{"window.flush", "block"}, {"window.recent", 64}, {"window.sink", 8}});
  const data::Sample sample = sample_of(1, 200, 64, 970);
  KvCache packed(method, plain::prepared(method, sample), shape_of(sample), "cpu");
  packed.prefill(sample.k, sample.v);
  const cache::PackedBytes bytes = packed.bytes();
  CHECK(bytes.codes == 2 * 128 * 64 * 2 * 2 / 8);
  // Keys: 4 groups of 32 tokens × 64 channels; values: 2 groups a token; scale and zero of 2 bytes.
  CHECK(bytes.params == 2 * (4 * 64 + 128 * 2) * 2 * 2);
  CHECK(bytes.scales == 128 * 4);  // one number of 4 bytes a token for both heads
  CHECK(bytes.window == 2 * 72 * 64 * 2 * 2);
  CHECK(bytes.centers == 0);
  // A block of 64 tokens: 2 × 1024 codes, 2 × 256 key and 2 × 256 value parameters, 256 norms.
  const int64_t blocks = 2 * 2 * (2 * 1024 + 2 * 256 + 2 * 256 + 256);
  // The ring: 64 + 32 tokens and a step of 8.
  const int64_t windows = 2 * 2 * (8 + 104) * 64 * 2;
  CHECK(bytes.all() == blocks + windows);
}

TEST_CASE("a cache refuses what does not fit it, in a sentence", "[cache]") {
  const method::Recipe method = recipe("kivi");
  const data::Sample sample = sample_of(1, 40, 64, 980);
  const calibrate::Prepared prepared = plain::prepared(method, sample);
  KvCache packed(method, prepared, {1, 2, 64, 40, DType::bf16}, "cpu");
  packed.prefill(sample.k.narrow(2, 0, 39), sample.v.narrow(2, 0, 39));
  const auto k = [&](int64_t n) { return sample.k.narrow(2, 0, n); };
  CHECK_THROWS_WITH(packed.append(k(2), k(2)), "append: 1 token more than the capacity of 40");
  CHECK_THROWS_WITH(packed.append(k(2), k(1)), "append: k has 2 tokens, v 1");
  CHECK_THROWS_WITH(packed.append(k(9), k(9)),
                    "k must be [1, 2, at most 8 tokens, 64], found [1, 2, 9, 64]");
  CHECK_THROWS_WITH(packed.prefill(k(9), k(9), {10}),
                    "prefill: lengths [10] do not fit k of 9 and v of 9 tokens of 1 sequences");
  CHECK_THROWS_WITH(
      packed.attend(sample.q.narrow(1, 0, 3)),
      "q must be [1, a multiple of 2 heads, 1 to 8 tokens, 64], found [1, 3, 40, 64]");
  CHECK_THROWS_WITH(packed.attend(at::zeros({1, 34, 1, 64})),
                    "backends cpu and cuda: 17 query heads a KV head have no kernel, at most 16 "
                    "have");
  CHECK_THROWS_WITH(KvCache(method, prepared, {1, 2, 64, 0, DType::bf16}, "cpu"),
                    "a cache of 1 sequences of 0 tokens and 2 KV heads cannot be made");
}
