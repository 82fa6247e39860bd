// Every kind of codec on the groups that formulas forget: constant, zero, −0, subnormal, and a mix.
#include <cmath>
#include <set>

#include "catch.h"
#include "method/schema.h"
#include "quant/codec.h"
#include "quant/packing.h"
#include "quant/parts.h"
#include "quant/plain_codec.h"

using namespace kvlab;

namespace {

constexpr int64_t kHeads = 2, kTokens = 64, kDim = 32;

struct Case {
  std::string name;
  Settings codec;
};

/// Each kind, on each axis that it has, and with rows over all heads where it takes them.
std::vector<Case> all_cases() {
  std::vector<Case> cases;
  const auto add = [&](const std::string& kind, const std::string& name, const Settings& changes) {
    Settings codec = below(method::default_settings(), "key.codec.");
    codec["kind"] = kind;
    codec["group"] = 16;
    codec["boost_tokens"] = 16;
    codec["entries"] = 16;
    codec["codebook_stride"] = 1;
    for (const auto& [key, value] : changes) codec[key] = value;
    cases.push_back({kind + " " + name, codec});
  };
  for (const char* grid : {"float_zero", "rounded_zero", "symmetric"}) {
    for (const char* axis : {"channel", "token"}) {
      add("uniform", std::string(grid) + " " + axis, {{"grid", grid}, {"axis", axis}});
    }
    add("uniform", std::string(grid) + " whole token", {{"grid", grid}, {"row", "token"}});
  }
  add("uniform", "code_offset", {{"zero", "code_offset"}});
  add("boosted", "", {{"axis", "channel"}});
  add("codebook", "norm", {});
  add("codebook", "corrected", {{"norm_correction", true}});
  add("codebook", "deviation", {{"normalize", "mean_deviation"}});
  add("codebook", "ratio", {{"normalize", "mean_deviation"}, {"ratio", 1.16}});
  add("codebook", "split", {{"high_share", 0.5}});
  add("sketched_codebook", "", {});
  add("vector_codebook", "", {});
  add("sparse_dense", "channel", {{"axis", "channel"}});
  add("sparse_dense", "token", {{"axis", "token"}});
  add("sparse_dense", "whole token", {{"axis", "token"}, {"row", "token"}});
  add("sparse_dense", "normed", {{"axis", "channel"}, {"signpost_norm", true}});
  for (const char* format : {"e4m3", "e5m2"}) add("float", format, {{"format", format}});
  add("float", "mx", {{"format", "e2m1"}, {"scale", "e8m0"}});
  add("float", "nv", {{"format", "e2m1"}, {"scale", "e4m3"}});
  return cases;
}

at::Tensor shared_of(const Settings& codec) {
  if (quant::learns_codebook(codec)) {
    return quant::learn_codebook(codec, plain::gaussian({kHeads, 400, kDim}, 40), {}, {});
  }
  if (get_text(codec, "kind") != "sketched_codebook") return {};
  const at::Tensor square = plain::gaussian({kDim, kDim}, 41).to(at::kDouble);
  return std::get<0>(at::linalg_qr(square)).unsqueeze(0).expand({kHeads, -1, -1});
}

struct Result {
  quant::Encoded encoded;
  at::Tensor values;
};

Result through(const Settings& codec, const at::Tensor& x) {
  const auto made = quant::make_codec(codec, kDim);
  Result result;
  result.encoded = made->encode(x, shared_of(codec));
  result.values = made->decode(result.encoded);
  CHECK(result.values.sizes() == x.sizes());
  CHECK(result.values.isfinite().all().item<bool>());
  CHECK(result.encoded.saturated.sizes() == at::IntArrayRef({kHeads}));
  return result;
}

at::Tensor filled(double value) { return at::full({kHeads, kTokens, kDim}, value, at::kFloat); }

double largest(const at::Tensor& x) { return x.abs().max().item<double>(); }

/// The largest number that zeros may become. Calibrated ends know no group of zeros: its values are
/// those of a signpost. OSCAR's deviation is the root of the variance plus 1e-8.
double of_zeros(const Case& one) {
  if (get_text(one.codec, "kind") == "sparse_dense") return 1.0;
  const bool deviation = get_text(one.codec, "kind") == "codebook" &&
                         get_text(one.codec, "normalize") == "mean_deviation";
  return deviation ? 1e-4 : 0.0;
}

}  // namespace

TEST_CASE("edge groups: zeros decode to zeros, and −0 is 0", "[edges]") {
  for (const Case& one : all_cases()) {
    CAPTURE(one.name);
    const Result zero = through(one.codec, filled(0.0));
    const Result minus = through(one.codec, filled(-0.0));
    CHECK(largest(zero.values) <= of_zeros(one));
    CHECK((zero.values - minus.values).abs().max().item<double>() == 0.0);
    CHECK(zero.encoded.saturated.sum().item<int64_t>() == 0);
  }
}

TEST_CASE("edge groups: constant groups come back", "[edges]") {
  for (const Case& one : all_cases()) {
    CAPTURE(one.name);
    const std::string kind = get_text(one.codec, "kind");
    for (const double value : {3.0, -0.7, 1e-3, 500.0}) {
      CAPTURE(value);
      const Result result = through(one.codec, filled(value));
      const double error = largest(result.values - value) / std::abs(value);
      if (kind == "uniform" || kind == "boosted") {
        // 16-bit parameters; a group that is one value is that value (least_range: to 1e-4 of it).
        CHECK(error <= (value == 1e-3 && kind == "boosted" ? 0.1 : 1e-3));
      } else if (kind == "float") {
        // Half a step of the format, and the least number of a fixed scale or of an e4m3 one.
        CHECK(std::abs(value) * error <= 0.25 * std::abs(value) + 1e-3);
      } else if (kind == "sparse_dense") {
        // Beyond the ends it is an outlier, kept in 16 bits; within them a signpost.
        if (std::abs(value) > 3.5 && get_text(one.codec, "axis") == "channel") CHECK(error <= 1e-3);
      } else if (kind == "codebook") {
        CHECK(error <= 1.6);  // levels of a normal, the outer one 1.51
      }
    }
  }
}

TEST_CASE("edge groups: subnormal numbers do no harm, alone or beside others", "[edges]") {
  for (const Case& one : all_cases()) {
    CAPTURE(one.name);
    const at::Tensor tiny = plain::gaussian({kHeads, kTokens, kDim}, 42) * 1e-40f;
    REQUIRE(largest(tiny) > 0.0);
    const Result alone = through(one.codec, tiny);
    CHECK(largest(alone.values) <= of_zeros(one) + 1e-3);
    // One row of them among usual ones, and one usual element among them.
    at::Tensor mixed = plain::gaussian({kHeads, kTokens, kDim}, 43);
    mixed.select(1, 5).mul_(1e-40f);
    const Result beside = through(one.codec, mixed);
    const at::Tensor others = at::cat({mixed.narrow(1, 0, 5), mixed.narrow(1, 6, 58)}, 1);
    const at::Tensor decoded =
        at::cat({beside.values.narrow(1, 0, 5), beside.values.narrow(1, 6, 58)}, 1);
    const double error = ((decoded - others).square().sum() / others.square().sum()).item<double>();
    CHECK(error < 0.75);  // one bit and its sketch: 1 − 2/π and as much again
    at::Tensor single = tiny.clone();
    single[1][40][7] = 2.0f;
    CHECK(largest(through(one.codec, single).values) < 12.0);
  }
}

TEST_CASE("edge groups: normal values use several levels, in all heads", "[edges]") {
  for (const Case& one : all_cases()) {
    CAPTURE(one.name);
    const at::Tensor x = plain::gaussian({kHeads, kTokens, kDim}, 44);
    const Result result = through(one.codec, x);
    const std::string kind = get_text(one.codec, "kind");
    const bool plain_codes = kind == "uniform" || kind == "boosted" || kind == "sparse_dense" ||
                             (kind == "codebook" && get_real(one.codec, "high_share") == 0.0);
    if (plain_codes) {
      const at::Tensor codes = quant::unpack(result.encoded.codes, 2);
      const bool three = kind == "uniform" && get_text(one.codec, "grid") == "symmetric";
      for (int64_t head = 0; head < codes.size(0); ++head) {
        CHECK(std::get<0>(at::_unique(codes[head])).size(0) == (three ? 3 : 4));
      }
    }
    for (int64_t head = 0; head < kHeads; ++head) {
      const at::Tensor token = result.values[head][16];
      CHECK(std::get<0>(at::_unique(token)).size(0) >= 3);
    }
    CHECK_FALSE(result.values[0].equal(result.values[1]));
    const double error = ((result.values - x).square().sum() / x.square().sum()).item<double>();
    CHECK(error < 0.75);
  }
}

TEST_CASE("edge groups: what one token or group holds leaves the others alone", "[edges]") {
  for (const Case& one : all_cases()) {
    CAPTURE(one.name);
    at::Tensor x = plain::gaussian({kHeads, kTokens, kDim}, 45);
    const at::Tensor before = through(one.codec, x).values;
    x.narrow(1, 16, 16).fill_(-0.0);
    x.narrow(1, 32, 16).fill_(7.0);
    const at::Tensor after = through(one.codec, x).values;
    CHECK(after.narrow(1, 0, 16).equal(before.narrow(1, 0, 16)));
    CHECK(after.narrow(1, 48, 16).equal(before.narrow(1, 48, 16)));
  }
}
