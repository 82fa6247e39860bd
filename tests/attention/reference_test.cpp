#include "attention/reference.h"

#include <cmath>
#include <limits>
#include <vector>

#include "catch.h"
#include "quant/plain_codec.h"

using namespace kvlab;
using attention::cached_attention;
using attention::Exact;
using attention::exact_attention;
using attention::HeadCache;
using attention::Read;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

using Matrix = std::vector<std::vector<double>>;

Matrix rows(const at::Tensor& x) {
  const at::Tensor wide = x.to(at::kDouble).contiguous();
  Matrix result;
  for (int64_t i = 0; i < wide.size(0); ++i) {
    const double* row = wide.const_data_ptr<double>() + i * wide.size(1);
    result.emplace_back(row, row + wide.size(1));
  }
  return result;
}

double dot(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

/// Attention of one query over tokens 0 … p, by the definition.
struct Attended {
  std::vector<double> logits, weights, output;
};

Attended attend(const std::vector<double>& q, const Matrix& k, const Matrix& v, int64_t p) {
  Attended result;
  double total = 0;
  double largest = -kInfinity;
  for (int64_t t = 0; t <= p; ++t) {
    result.logits.push_back(dot(q, k[static_cast<size_t>(t)]) /
                            std::sqrt(static_cast<double>(q.size())));
    largest = std::max(largest, result.logits.back());
  }
  for (const double logit : result.logits) total += std::exp(logit - largest);
  result.output.assign(v[0].size(), 0.0);
  for (size_t t = 0; t < result.logits.size(); ++t) {
    result.weights.push_back(std::exp(result.logits[t] - largest) / total);
    for (size_t c = 0; c < v[t].size(); ++c) result.output[c] += result.weights[t] * v[t][c];
  }
  return result;
}

at::Tensor wide(at::IntArrayRef shape, uint64_t seed) {
  return plain::gaussian(shape, seed).to(at::kDouble);
}

at::Tensor at_positions(const std::vector<int64_t>& positions) {
  return at::tensor(positions, at::kLong);
}

double gap(const at::Tensor& a, const at::Tensor& b) { return (a - b).abs().max().item<double>(); }

/// A cache whose tokens [begin, begin + n) can be read decoded, off by `noise`.
struct Case {
  at::Tensor q, k, v, positions;
  HeadCache cache;
  Exact exact;
};

Case noisy_case(double noise) {
  Case c;
  c.q = wide({4, 8}, 70) * 2;
  c.k = wide({30, 8}, 71);
  c.v = wide({30, 8}, 72);
  c.positions = at_positions({2, 11, 20, 29});
  c.exact = exact_attention(c.q, c.k, c.v, c.positions);
  c.cache.k = c.k;
  c.cache.v = c.v;
  c.cache.begin = 3;
  c.cache.k_read = c.k.narrow(0, 3, 24) + wide({24, 8}, 73) * noise;
  c.cache.v_read = c.v.narrow(0, 3, 24) + wide({24, 8}, 74) * noise;
  c.cache.key_boundary = at_positions({3, 7, 19, 27});
  c.cache.value_boundary = at_positions({3, 11, 15, 23});
  return c;
}

}  // namespace

TEST_CASE("exact attention equals loops over the definition", "[attention]") {
  const at::Tensor q = wide({5, 16}, 75) * 3;
  const at::Tensor k = wide({40, 16}, 76);
  const at::Tensor v = wide({40, 16}, 77);
  const std::vector<int64_t> positions = {0, 1, 17, 38, 39};
  const Exact exact = exact_attention(q, k, v, at_positions(positions));
  for (size_t i = 0; i < positions.size(); ++i) {
    const int64_t p = positions[i];
    const auto index = static_cast<int64_t>(i);
    const Attended expected = attend(rows(q)[i], rows(k), rows(v), p);
    for (int64_t t = 0; t < 40; ++t) {
      const auto token = static_cast<size_t>(t);
      const double logit = exact.logits[index][t].item<double>();
      const double weight = exact.log_weights[index][t].exp().item<double>();
      CHECK(logit == (t <= p ? Approx(expected.logits[token]).epsilon(1e-12) : Approx(-kInfinity)));
      CHECK(weight == Approx(t <= p ? expected.weights[token] : 0.0).margin(1e-14));
    }
    CHECK(gap(exact.output[index], at::tensor(expected.output, at::kDouble)) < 1e-13);
  }
}

TEST_CASE("D75 attention through the cache equals loops over what each probe reads",
          "[attention]") {
  const Case c = noisy_case(0.3);
  const Read read = cached_attention(c.q, c.cache, c.exact, c.positions);
  for (int64_t i = 0; i < 4; ++i) {
    const auto p = c.positions[i].item<int64_t>();
    const auto limit = [&](const at::Tensor& boundary) { return boundary[i].item<int64_t>(); };
    // Tokens [3, boundary) decoded, all others as captured.
    at::Tensor k = c.k.clone();
    at::Tensor v = c.v.clone();
    for (int64_t t = 3; t < limit(c.cache.key_boundary); ++t) k[t] = c.cache.k_read[t - 3];
    for (int64_t t = 3; t < limit(c.cache.value_boundary); ++t) v[t] = c.cache.v_read[t - 3];
    const auto query = rows(c.q)[static_cast<size_t>(i)];
    const Attended exact = attend(query, rows(c.k), rows(c.v), p);
    const Attended keys_only = attend(query, rows(k), rows(c.v), p);
    const Attended both = attend(query, rows(k), rows(v), p);
    for (int64_t t = 0; t <= p; ++t) {
      CHECK(read.logits[i][t].item<double>() ==
            Approx(both.logits[static_cast<size_t>(t)]).epsilon(1e-12));
      CHECK(read.log_weights[i][t].exp().item<double>() ==
            Approx(both.weights[static_cast<size_t>(t)]).margin(1e-14));
    }
    for (int64_t t = p + 1; t < 30; ++t) CHECK(read.logits[i][t].item<double>() == -kInfinity);
    for (int64_t j = 0; j < 8; ++j) {
      const auto ch = static_cast<size_t>(j);
      CHECK(read.key_error[i][j].item<double>() ==
            Approx(keys_only.output[ch] - exact.output[ch]).margin(1e-13));
      CHECK(read.value_error[i][j].item<double>() ==
            Approx(both.output[ch] - keys_only.output[ch]).margin(1e-13));
    }
  }
  // The first probe stands before the history: nothing is decoded there.
  CHECK(read.key_error[0].abs().max().item<double>() == 0.0);
  CHECK(read.value_error[0].abs().max().item<double>() == 0.0);
  CHECK(read.key_error[3].abs().max().item<double>() > 1e-3);
}

TEST_CASE("a side without decoded tokens has no error", "[attention]") {
  Case c = noisy_case(0.3);
  HeadCache keys = c.cache;
  keys.v_read = at::Tensor();
  const Read from_keys = cached_attention(c.q, keys, c.exact, c.positions);
  CHECK(from_keys.value_error.abs().max().item<double>() == 0.0);
  CHECK(from_keys.key_error.abs().max().item<double>() > 0.0);
  HeadCache values = c.cache;
  values.k_read = at::zeros({0, 8}, at::kDouble);
  const Read from_values = cached_attention(c.q, values, c.exact, c.positions);
  CHECK(from_values.key_error.abs().max().item<double>() == 0.0);
  CHECK(at::equal(from_values.logits, c.exact.logits));
  CHECK(from_values.value_error.abs().max().item<double>() > 0.0);
}

TEST_CASE("decoded tokens behind a boundary are not read", "[attention]") {
  Case c = noisy_case(0.3);
  const Read before = cached_attention(c.q, c.cache, c.exact, c.positions);
  c.cache.k_read.narrow(0, 16, 8).fill_(1e6);   // tokens 19 … 26: read by the last probe alone
  c.cache.v_read.narrow(0, 12, 12).fill_(1e6);  // tokens 15 … 26
  const Read after = cached_attention(c.q, c.cache, c.exact, c.positions);
  for (int64_t i = 0; i < 3; ++i) {
    CHECK(at::equal(after.logits[i], before.logits[i]));
    CHECK(at::equal(after.key_error[i], before.key_error[i]));
    CHECK(at::equal(after.value_error[i], before.value_error[i]));
  }
  CHECK_FALSE(at::equal(after.logits[3], before.logits[3]));
}

TEST_CASE("D55 NaN in tokens that a probe does not read does not reach it", "[attention]") {
  const auto bad = GENERATE(kNan, kInfinity);
  Case c = noisy_case(0.3);
  const Read clean = cached_attention(c.q, c.cache, c.exact, c.positions);
  c.cache.k_read.narrow(0, 16, 8).fill_(bad);
  c.cache.v_read.narrow(0, 12, 12).fill_(bad);
  const Read read = cached_attention(c.q, c.cache, c.exact, c.positions);
  for (int64_t i = 0; i < 3; ++i) {
    CHECK(at::equal(read.logits[i], clean.logits[i]));
    CHECK(at::equal(read.key_error[i], clean.key_error[i]));
    CHECK(gap(read.value_error[i], clean.value_error[i]) < 1e-14);
  }
  // The probe that does read them must not look clean.
  CHECK_FALSE(read.value_error[3].isfinite().all().item<bool>());

  // Captured tokens behind a probe: tokens 21 … 29 are seen by the last one only.
  at::Tensor k = c.k.clone();
  at::Tensor v = c.v.clone();
  k.narrow(0, 21, 9).fill_(bad);
  v.narrow(0, 21, 9).fill_(bad);
  const Exact exact = exact_attention(c.q, k, v, c.positions);
  for (int64_t i = 0; i < 3; ++i) {
    CHECK(at::equal(exact.logits[i], c.exact.logits[i]));
    CHECK(gap(exact.output[i], c.exact.output[i]) < 1e-14);
  }
  CHECK_FALSE(exact.output[3].isfinite().all().item<bool>());
}

TEST_CASE("D57 a probe at position 0 sees itself alone", "[attention]") {
  const at::Tensor q = wide({1, 8}, 78);
  const at::Tensor k = wide({4, 8}, 79);
  const at::Tensor v = wide({4, 8}, 80);
  const Exact exact = exact_attention(q, k, v, at_positions({0}));
  CHECK(exact.log_weights[0][0].item<double>() == 0.0);
  CHECK(at::equal(exact.output[0], v[0]));
}

TEST_CASE("D60 one-hot attention returns every channel of its value", "[attention]") {
  // Keys 400·e_t and queries e_t: the softmax is one-hot to the last bit, whatever the number of
  // queries.
  const int64_t d = 16;
  const at::Tensor k = at::eye(d, at::kDouble) * 4000;
  const at::Tensor v = at::arange(d * d, at::kDouble).reshape({d, d});
  for (const int64_t queries : {1, 2, 3, 8}) {
    CAPTURE(queries);
    const at::Tensor q = at::eye(d, at::kDouble).narrow(0, 3, queries);
    const at::Tensor positions = at::arange(8, 8 + queries, at::kLong);  // after token 3 + i
    const Exact exact = exact_attention(q, k, v, positions);
    CHECK(at::equal(exact.output, v.narrow(0, 3, queries)));
    // Decoded values, again with one number a channel.
    HeadCache cache;
    cache.k = k;
    cache.v = v;
    cache.v_read = v + 0.5;
    cache.key_boundary = cache.value_boundary = positions;
    const Read read = cached_attention(q, cache, exact, positions);
    CHECK(at::equal(read.value_error, at::full({queries, d}, 0.5, at::kDouble)));
    CHECK(read.key_error.abs().max().item<double>() == 0.0);
  }
}

TEST_CASE("D52 a constant vector added to all keys leaves the softmax as it is", "[attention]") {
  const at::Tensor q = wide({6, 16}, 81);
  const at::Tensor k = wide({50, 16}, 82);
  const at::Tensor v = wide({50, 16}, 83);
  const at::Tensor positions = at::arange(44, 50, at::kLong);
  at::Tensor shift = wide({16}, 84);
  shift[3] = 600;
  shift[9] = -450;
  const Exact plain_keys = exact_attention(q, k, v, positions);
  const Exact shifted = exact_attention(q, k + shift, v, positions);
  CHECK(gap(shifted.output, plain_keys.output) < 1e-11);
  const at::Tensor change = shifted.logits - plain_keys.logits;
  CHECK(change.narrow(1, 0, 44).abs().min().item<double>() > 1.0);  // all logits of a probe move
}

TEST_CASE("D96 less key error can mean worse attention", "[attention]") {
  // A shift of all keys has a large error and no effect; a little noise has a small one and moves
  // the weights.
  Case c = noisy_case(0.0);
  c.cache.begin = 0;
  c.cache.v_read = at::Tensor();
  c.cache.key_boundary = c.positions + 1;
  const auto divergence = [&](const at::Tensor& k_read) {
    c.cache.k_read = k_read;
    const Read read = cached_attention(c.q, c.cache, c.exact, c.positions);
    const at::Tensor terms = c.exact.log_weights.exp() * (c.exact.log_weights - read.log_weights);
    return terms.nan_to_num(0.0).sum().item<double>();
  };
  const at::Tensor shifted = c.k + wide({8}, 85);
  const at::Tensor noisy = c.k + wide({30, 8}, 86) * 0.2;
  CHECK((shifted - c.k).square().mean().item<double>() >
        4 * (noisy - c.k).square().mean().item<double>());
  CHECK(std::abs(divergence(shifted)) < 1e-12);
  CHECK(divergence(noisy) > 1e-3);
}
