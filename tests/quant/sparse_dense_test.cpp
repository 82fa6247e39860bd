#include "quant/sparse_dense.h"

#include "catch.h"
#include "method/schema.h"
#include "quant/codec.h"
#include "quant/kmeans.h"
#include "quant/packing.h"
#include "quant/plain_codec.h"

using namespace kvlab;

namespace {

Settings sparse(const Settings& changes = {}) {
  Settings all = below(method::default_settings(), "key.codec.");
  all["kind"] = "sparse_dense";
  all["axis"] = "channel";
  for (const auto& [key, value] : changes) all[key] = value;
  return all;
}

double mse(const at::Tensor& a, const at::Tensor& b) {
  return (a - b).to(at::kDouble).square().mean().item<double>();
}

}  // namespace

TEST_CASE("k-means of scalars ends at the means of its cells", "[kmeans]") {
  const at::Tensor x = at::tensor({9.0, 0.0, 1.0, 10.0, 11.0}, at::kDouble);
  CHECK(at::allclose(quant::kmeans_scalars(x, {}, 2, 50), at::tensor({0.5, 10.0}, at::kDouble)));
  // A weight of 3 is the value three times.
  const at::Tensor weight = at::tensor({1.0, 1.0, 3.0, 1.0, 1.0}, at::kDouble);
  CHECK(
      at::allclose(quant::kmeans_scalars(x, weight, 2, 50), at::tensor({0.75, 10.0}, at::kDouble)));
  // Weights of zero alone are none.
  CHECK(at::allclose(quant::kmeans_scalars(x, at::zeros({5}), 2, 50),
                     at::tensor({0.5, 10.0}, at::kDouble)));
  // More levels than values: every value is one.
  const at::Tensor many = quant::kmeans_scalars(x, {}, 8, 50);
  CHECK((x.unsqueeze(1) - many).abs().amin(1).max().item<double>() == 0.0);
  // Of a normal they are Lloyd's and Max's.
  const at::Tensor normal = plain::gaussian({200000}, 6).to(at::kDouble);
  CHECK(at::allclose(quant::kmeans_scalars(normal, {}, 4, 500),
                     at::tensor({-1.5104, -0.4528, 0.4528, 1.5104}, at::kDouble), 0.0, 0.02));
}

TEST_CASE("k-means of rows finds clusters", "[kmeans]") {
  at::Tensor x = plain::gaussian({2, 400, 3}, 8) * 0.01;
  for (int64_t i = 0; i < 400; ++i) x.select(1, i).add_(static_cast<double>(i % 4) * 5.0);
  const at::Tensor centres = quant::kmeans_rows(x, 4, 25, {});
  REQUIRE(centres.sizes() == at::IntArrayRef({2, 4, 3}));
  const at::Tensor sorted = std::get<0>(centres.select(2, 0).sort(1));
  CHECK(at::allclose(sorted[1], at::tensor({0.0f, 5.0f, 10.0f, 15.0f}), 0.0, 0.05));
  const at::Tensor entry = quant::nearest_rows(at::full({1, 3}, 5.2f), centres[0]);
  CHECK(centres[0][entry.item<int64_t>()][0].item<float>() == Approx(5.0).margin(0.05));
}

TEST_CASE("values beyond calibrated ends are kept as they are", "[sparse_dense]") {
  const at::Tensor calibration = plain::gaussian({2, 1000, 16}, 1);
  const at::Tensor shared = quant::learn_sparse_dense(sparse(), calibration, {});
  REQUIRE(shared.sizes() == at::IntArrayRef({2, 16 + 16 + 4}));
  at::Tensor x = plain::gaussian({2, 50, 16}, 2);
  x[0][3][5] = 40.0;
  x[1][7][0] = -25.0;
  const auto codec = quant::make_codec(sparse(), 16);
  const quant::Encoded encoded = codec->encode(x, shared);
  const at::Tensor decoded = codec->decode(encoded);
  CHECK(decoded[0][3][5].item<float>() == 40.0f);
  CHECK(decoded[1][7][0].item<float>() == -25.0f);
  CHECK(quant::unpack(encoded.codes, 2).max().item<int64_t>() == 3);  // all levels are used
  const at::Tensor counts = encoded.more.at(0).to(at::kLong);
  CHECK(counts.sum().item<int64_t>() == encoded.more.at(2).size(0));
  CHECK(counts.sum().item<int64_t>() < 50 * 2 * 16 / 25);
  // Codes, a count a row, and a byte and 16 bits an outlier; parameters are shared.
  CHECK(encoded.code_bytes() == 2 * 50 * 16 * 2 / 8 + 2 * 50 + 3 * counts.sum().item<int64_t>());
  CHECK(encoded.param_bytes() == 0);
  const at::Tensor bytes = counts.sum(0) * 3 + 2 * (16 * 2 / 8 + 1);
  CHECK(encoded.token_bytes.equal(bytes));
  CHECK(bytes.sum().item<int64_t>() == encoded.code_bytes());
  CHECK(mse(decoded, x) < 0.13);
  CHECK_THROWS_WITH(codec->encode(x, {}), ContainsSubstring("signposts"));
}

TEST_CASE("per-token ends are those of the row without its outliers", "[sparse_dense]") {
  const Settings settings = sparse({{"axis", "token"}, {"sparse", 0.125}, {"params", "fp32"}});
  const at::Tensor posts = at::tensor({-1.0f, -0.5f, 0.5f, 1.0f}).unsqueeze(0);
  const at::Tensor x = at::tensor({-90.0f, 1.0f, 2.0f, 3.0f, 4.0f, 5.0f, 6.0f, 7.0f, 3.0f, 3.0f,
                                   3.0f, 3.0f, 3.0f, 3.0f, 3.0f, 80.0f})
                           .reshape({1, 1, 16});
  const auto codec = quant::make_codec(settings, 16);
  const quant::Encoded encoded = codec->encode(x, posts);
  // Quantiles at 1/16 and 15/16 of 16 values lie above the lowest and below the highest.
  CHECK(encoded.more.at(0).item<int64_t>() == 2);
  CHECK(
      encoded.params.flatten().equal(at::tensor({3.0f, 4.0f})));  // half width and middle of 1 … 7
  const at::Tensor decoded = codec->decode(encoded).flatten();
  CHECK(decoded[0].item<float>() == -90.0f);
  CHECK(decoded[15].item<float>() == 80.0f);
  CHECK(decoded[1].item<float>() == 1.0f);  // −1
  CHECK(decoded[2].item<float>() == 2.5f);  // −2/3 is nearest −0.5
  CHECK(decoded[7].item<float>() == 7.0f);
  // A row of one value has no range, a row of zeros no outliers.
  const at::Tensor flat = at::cat({at::full({1, 1, 16}, 3.0f), at::zeros({1, 1, 16})}, 1);
  const at::Tensor same = codec->decode(codec->encode(flat, posts));
  CHECK((same - flat).abs().max().item<float>() <= 1.0f);
  CHECK(same.isfinite().all().item<bool>());
}

TEST_CASE("weights move signposts", "[sparse_dense]") {
  const at::Tensor x = plain::gaussian({1, 500, 8}, 12);
  const at::Tensor weight = x.gt(0).to(at::kFloat) * 100.0 + 0.01;
  const at::Tensor plain = quant::learn_sparse_dense(sparse(), x, {});
  const at::Tensor weighted = quant::learn_sparse_dense(sparse(), x, weight);
  CHECK(weighted.narrow(1, 0, 16).equal(plain.narrow(1, 0, 16)));
  CHECK(weighted[0][16].item<float>() > plain[0][16].item<float>() + 0.1f);
}

TEST_CASE("a row of all heads has one pair of ends and its own outliers", "[sparse_dense]") {
  const Settings whole = sparse({{"axis", "token"}, {"row", "token"}, {"sparse", 0.02}});
  const at::Tensor x = plain::gaussian({4, 30, 64}, 21);
  const at::Tensor shared = quant::learn_codebook(whole, x, {}, {});
  REQUIRE(shared.sizes() == at::IntArrayRef({4, 4}));
  const auto codec = quant::make_codec(whole, 64);
  const quant::Encoded encoded = codec->encode(x, shared);
  CHECK(encoded.params.sizes() == at::IntArrayRef({1, 30, 2}));
  // 256 channels: places and counts of 16 bits.
  CHECK(encoded.more.at(0).scalar_type() == at::kShort);
  CHECK(encoded.more.at(1).scalar_type() == at::kShort);
  // The same as one head of 256 channels.
  const Settings head = sparse({{"axis", "token"}, {"sparse", 0.02}});
  const at::Tensor wide = x.transpose(0, 1).reshape({1, 30, 256});
  const auto one = quant::make_codec(head, 256);
  const at::Tensor expected =
      one->decode(one->encode(wide, shared.narrow(0, 0, 1))).reshape({30, 4, 64}).transpose(0, 1);
  const at::Tensor decoded = codec->decode(encoded);
  CHECK(decoded.equal(expected));
  const auto each = quant::make_codec(head, 64);
  CHECK_FALSE(decoded.equal(each->decode(each->encode(x, shared))));
  // Outliers beyond channel 255 come back.
  at::Tensor far = plain::gaussian({4, 30, 128}, 22);
  far[3][2][100] = 50.0;
  const auto larger = quant::make_codec(whole, 128);
  CHECK(larger->decode(larger->encode(far, shared))[3][2][100].item<float>() == 50.0f);
}

TEST_CASE("normed signposts keep the mean and deviation of calibration values", "[sparse_dense]") {
  // A skewed distribution: signposts alone lose deviation.
  const at::Tensor x = plain::gaussian({1, 2000, 16}, 23).exp();
  const Settings none = sparse({{"sparse", 0.0}});
  const Settings normed = sparse({{"sparse", 0.0}, {"signpost_norm", true}});
  const auto decoded = [&](const Settings& settings) {
    const auto codec = quant::make_codec(settings, 16);
    return codec->decode(codec->encode(x, quant::learn_codebook(settings, x, {}, {})));
  };
  // Of values over the width of their channel, about its middle.
  const at::Tensor low = x.amin(1, true), high = x.amax(1, true);
  const auto unit = [&](const at::Tensor& y) {
    return (y - (low + high) / 2) / ((high - low) / 2);
  };
  const auto deviation = [&](const at::Tensor& y) { return unit(y).std().item<double>(); };
  CHECK(deviation(decoded(none)) < 0.98 * deviation(x));
  CHECK(deviation(decoded(normed)) == Approx(deviation(x)).epsilon(1e-3));
  CHECK(unit(decoded(normed)).mean().item<double>() ==
        Approx(unit(x).mean().item<double>()).margin(1e-4));
}
