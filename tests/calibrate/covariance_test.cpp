#include "calibrate/covariance.h"

#include <ATen/Parallel.h>

#include <bit>
#include <cmath>

#include "catch.h"
#include "metrics/cases.h"

using namespace kvlab;

namespace {

/// B = 2, two KV heads, three query heads each; fewer queries than tokens.
data::Sample small_sample() { return cases::gaussian_sample({2, 2, 6, 12, 4}, 900, {1, 4, 5, 11}); }

at::Tensor proxy_covariance(const data::Sample& sample) {
  return calibrate::proxy_covariance(sample, calibrate::query_covariance(sample));
}

double at4(const at::Tensor& x, int64_t a, int64_t b, int64_t c, int64_t d) {
  return x[a][b][c][d].item<double>();
}

/// Old column d−1−i at bitrev(i), i written in `bits` bits and read backwards.
int64_t spread_place(int64_t column, int64_t d, int bits) {
  const int64_t i = d - 1 - column;
  int64_t place = 0;
  for (int bit = 0; bit < bits; ++bit) {
    if (i >> bit & 1) place += int64_t{1} << (bits - 1 - bit);
  }
  return place;
}

}  // namespace

TEST_CASE("the query covariance pools sequences and the query heads of a KV head", "[covariance]") {
  const data::Sample sample = small_sample();
  const at::Tensor covariance = calibrate::query_covariance(sample);
  REQUIRE(covariance.sizes() == at::IntArrayRef({2, 4, 4}));
  for (int64_t h = 0; h < 2; ++h) {
    for (int64_t i = 0; i < 4; ++i) {
      for (int64_t j = 0; j < 4; ++j) {
        double sum = 0;
        for (int64_t b = 0; b < 2; ++b) {
          for (int64_t head = 3 * h; head < 3 * h + 3; ++head) {
            for (int64_t p = 0; p < 4; ++p)
              sum += at4(sample.q, b, head, p, i) * at4(sample.q, b, head, p, j);
          }
        }
        CHECK(covariance[h][i][j].item<double>() == Approx(sum / (2 * 3 * 4)).margin(1e-13));
      }
    }
  }
}

TEST_CASE("the value covariance of OSCAR's code weighs tokens by kᵀCk", "[covariance]") {
  const data::Sample sample = small_sample();
  const at::Tensor query = calibrate::query_covariance(sample);
  const at::Tensor covariance = proxy_covariance(sample);
  for (int64_t h = 0; h < 2; ++h) {
    std::vector<double> weights;
    double total = 0;
    for (int64_t b = 0; b < 2; ++b) {
      for (int64_t t = 0; t < 12; ++t) {
        double w = 0;
        for (int64_t i = 0; i < 4; ++i) {
          for (int64_t j = 0; j < 4; ++j) {
            w += at4(sample.k, b, h, t, i) * query[h][i][j].item<double>() *
                 at4(sample.k, b, h, t, j);
          }
        }
        weights.push_back(w);
        total += w;
      }
    }
    for (int64_t i = 0; i < 4; ++i) {
      for (int64_t j = 0; j < 4; ++j) {
        double sum = 0;
        for (int64_t b = 0; b < 2; ++b) {
          for (int64_t t = 0; t < 12; ++t) {
            sum += weights[static_cast<size_t>(b * 12 + t)] / total * at4(sample.v, b, h, t, i) *
                   at4(sample.v, b, h, t, j);
          }
        }
        CHECK(covariance[h][i][j].item<double>() ==
              Approx(sum).margin(1e-13));  // Σw = n cancels 1/n
      }
    }
  }
}

TEST_CASE("the value covariance of OSCAR's paper is that of causal attention outputs",
          "[covariance]") {
  const data::Sample sample = small_sample();
  const at::Tensor covariance = calibrate::output_covariance(sample);
  for (int64_t h = 0; h < 2; ++h) {
    double expected[4][4] = {};
    for (int64_t head = 3 * h; head < 3 * h + 3; ++head) {
      for (int64_t b = 0; b < 2; ++b) {
        for (int64_t p = 0; p < 4; ++p) {
          const auto position = sample.positions[p].item<int64_t>();
          std::vector<double> weights;
          double total = 0;
          for (int64_t t = 0; t <= position; ++t) {
            double logit = 0;
            for (int64_t c = 0; c < 4; ++c)
              logit += at4(sample.q, b, head, p, c) * at4(sample.k, b, h, t, c);
            weights.push_back(std::exp(logit / 2));  // √4
            total += weights.back();
          }
          double output[4] = {};
          for (int64_t t = 0; t <= position; ++t) {
            for (int64_t c = 0; c < 4; ++c) {
              output[c] += weights[static_cast<size_t>(t)] / total * at4(sample.v, b, h, t, c);
            }
          }
          for (int i = 0; i < 4; ++i) {
            for (int j = 0; j < 4; ++j) expected[i][j] += output[i] * output[j] / (3 * 2 * 4);
          }
        }
      }
    }
    for (int64_t i = 0; i < 4; ++i) {
      for (int64_t j = 0; j < 4; ++j) {
        CHECK(covariance[h][i][j].item<double>() == Approx(expected[i][j]).margin(1e-13));
      }
    }
  }
}

TEST_CASE("the paper's covariance does not depend on the number of queries at a time",
          "[covariance]") {
  // 600 queries go through in more than one block.
  const data::Sample sample = cases::gaussian_sample({1, 1, 1, 600, 8}, 910);
  data::Sample first = sample, second = sample;
  first.q = sample.q.narrow(2, 0, 100);
  first.positions = sample.positions.narrow(0, 0, 100);
  second.q = sample.q.narrow(2, 100, 500);
  second.positions = sample.positions.narrow(0, 100, 500);
  const at::Tensor parts =
      (calibrate::output_covariance(first) * 100 + calibrate::output_covariance(second) * 500) /
      600;
  CHECK(at::allclose(calibrate::output_covariance(sample), parts, 0, 1e-13));
}

TEST_CASE("eigenvectors ascend and their largest entries are positive", "[covariance]") {
  const at::Tensor root = plain::gaussian({2, 16, 16}, 920).to(at::kDouble);
  const at::Tensor covariance = root.matmul(root.transpose(1, 2));
  const at::Tensor vectors = calibrate::eigenvectors(covariance);
  for (int64_t h = 0; h < 2; ++h) {
    double before = -1;
    for (int64_t i = 0; i < 16; ++i) {
      const at::Tensor u = vectors[h].select(1, i);
      const double value = u.dot(covariance[h].mv(u)).item<double>();
      CHECK((covariance[h].mv(u) - u * value).abs().max().item<double>() < 1e-11);
      CHECK(value > before);
      before = value;
      CHECK(u[u.abs().argmax().item<int64_t>()].item<double>() > 0);
    }
  }
}

TEST_CASE("D45 U, U·H and U·H·P of a diagonal covariance are known matrices", "[covariance]") {
  constexpr int64_t d = 128;
  // Queries √(128·(c + 1))·e_c in turn: QᵀQ/128 = diag(1 … 128), so U is the identity.
  data::Sample sample = cases::gaussian_sample({1, 1, 1, d, d, DType::fp32}, 930);
  sample.q = (at::eye(d, at::kDouble) * (at::arange(1, d + 1, at::kDouble) * d).sqrt())
                 .reshape({1, 1, d, d});
  const at::Tensor covariance = calibrate::query_covariance(sample);
  REQUIRE(at::allclose(covariance[0], at::diag(at::arange(1, d + 1, at::kDouble)), 0, 1e-10));

  const at::Tensor u = calibrate::covariance_rotation(covariance, "u")[0];
  CHECK(at::allclose(u, at::eye(d, at::kDouble), 0, 1e-12));
  const at::Tensor uh = calibrate::covariance_rotation(covariance, "uh")[0];
  const at::Tensor uhp = calibrate::covariance_rotation(covariance, "uhp")[0];
  for (int64_t row = 0; row < d; ++row) {
    for (int64_t column = 0; column < d; ++column) {
      const bool even = std::popcount(static_cast<uint64_t>(row & column)) % 2 == 0;
      const double expected = (even ? 1 : -1) / std::sqrt(128.0);
      CHECK(std::abs(uh[row][column].item<double>() - expected) < 1e-12);
      CHECK(std::abs(uhp[row][spread_place(column, d, 7)].item<double>() - expected) < 1e-12);
    }
  }
}

TEST_CASE("a flipped order of eigenvectors is told apart", "[covariance]") {
  // diag(3, 1, 2, 4): ascending, the columns are e1, e2, e0, e3.
  const at::Tensor covariance =
      at::diag(at::tensor({3.0, 1.0, 2.0, 4.0}, at::kDouble)).unsqueeze(0);
  const at::Tensor expected =
      at::tensor({0., 0., 1., 0., 1., 0., 0., 0., 0., 1., 0., 0., 0., 0., 0., 1.}, at::kDouble)
          .reshape({4, 4});
  CHECK(at::allclose(calibrate::covariance_rotation(covariance, "u")[0], expected, 0, 1e-14));
  // P of four columns: bitrev(i) = 0, 2, 1, 3 gets old column 3, 2, 1, 0.
  const at::Tensor uh = calibrate::covariance_rotation(covariance, "uh")[0];
  const at::Tensor uhp = calibrate::covariance_rotation(covariance, "uhp")[0];
  CHECK(at::equal(uhp, uh.index_select(1, at::tensor({3, 1, 2, 0}, at::kLong))));
}

TEST_CASE("D43 covariance rotations are orthogonal", "[covariance]") {
  const data::Sample sample = cases::gaussian_sample({1, 2, 4, 256, 64}, 940);
  for (const at::Tensor& covariance :
       {proxy_covariance(sample), calibrate::output_covariance(sample)}) {
    for (const bool hadamard : {false, true}) {
      const at::Tensor r = calibrate::covariance_rotation(covariance, hadamard ? "uhp" : "u");
      const at::Tensor off = r.matmul(r.transpose(1, 2)) - at::eye(64, at::kDouble);
      CHECK(off.abs().max().item<double>() <= 1e-12);
    }
  }
}

TEST_CASE("zero keys weigh all tokens alike", "[covariance]") {
  data::Sample sample = small_sample();
  sample.k = at::zeros_like(sample.k);
  const at::Tensor v = sample.v.select(1, 1).to(at::kDouble).reshape({-1, 4});
  CHECK(at::allclose(proxy_covariance(sample)[1], v.t().matmul(v) / 24, 0, 1e-13));
}

TEST_CASE("what calibration makes does not depend on the number of threads", "[covariance]") {
  const data::Sample sample = cases::gaussian_sample({1, 3, 6, 1536, 64}, 910);
  const auto made = [&](int threads) {
    const int before = at::get_num_threads();
    at::set_num_threads(threads);
    const at::Tensor query = calibrate::query_covariance(sample);
    std::vector<at::Tensor> all = {query, calibrate::proxy_covariance(sample, query),
                                   calibrate::output_covariance(sample)};
    all.push_back(calibrate::covariance_rotation(all[1], "uhp"));
    all.push_back(calibrate::covariance_rotation(all[2].mean(0, true), "uhp"));
    at::set_num_threads(before);
    return all;
  };
  const auto one = made(1);
  for (const int threads : {2, 3}) {
    const auto more = made(threads);
    for (size_t i = 0; i < one.size(); ++i) CHECK(at::equal(one[i], more[i]));
  }
}
