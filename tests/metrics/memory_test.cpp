#include "metrics/memory.h"

#include <cmath>

#include "cache/decoder.h"
#include "catch.h"
#include "metrics/cases.h"

using namespace kvlab;
using cases::recipe;
using cases::run;
using cases::scalar;

namespace {

/// d = 128, two KV heads, bf16.
data::Sample sample_of(int64_t tokens) {
  data::Sample sample = cases::gaussian_sample({1, 2, 2, 64, 128, DType::bf16}, 500, {63});
  sample.k = sample.k.repeat({1, 1, tokens / 64, 1});
  sample.v = sample.v.repeat({1, 1, tokens / 64, 1});
  sample.positions = at::tensor({tokens - 1}, at::kLong);
  return sample;
}

/// cases.md: h + (S + R)·(16 − h)/T.
double formula(double history, double window, double tokens) {
  return history + window * (16 - history) / tokens;
}

struct Expected {
  const char* id;
  double key_bits, value_bits;  // of history: 2 + parameters·16/G
  double token_scale_bits;      // a key token of all heads
  bool center;
  plain::Rule rule;
};

// Written by hand from contract section 4.5, at d = 128.
const std::vector<Expected> kPresets = {
    {"bf16", 16, 16, 0, false, {"block", 0, 0, 1, 1, false, false}},
    {"int2_naive", 2.25, 2.25, 0, false, {"block", 0, 0, 1, 1}},
    {"int2_naive_symmetric", 2.125, 2.125, 0, false, {"block", 0, 0, 1, 1}},
    {"int2_naive_windows", 2.25, 2.25, 0, false, {"block", 64, 256, 1, 1}},
    {"kivi", 3, 3, 0, false, {"kivi", 0, 128, 32, 1}},
    {"kivi_g128", 2.25, 2.25, 0, false, {"kivi", 0, 128, 128, 1}},
    {"kcvt_base", 3, 3, 0, false, {"full", 0, 128, 32, 1}},
    {"token_scale", 3, 3, 32, false, {"full", 0, 128, 32, 1}},
    {"hadamard", 3, 3, 0, false, {"full", 0, 128, 32, 1}},
    {"oscar_ots", 3, 3, 32, false, {"full", 0, 128, 32, 1}},
    {"quarot", 2.25, 2.25, 0, false, {"block", 0, 0, 1, 1}},
    {"quarot_token", 2.25, 2.25, 0, false, {"block", 0, 0, 1, 1}},
    {"quarot_windows", 2.25, 2.25, 0, false, {"block", 64, 256, 1, 1}},
    {"quarot_windows_centered", 2.25, 2.25, 0, true, {"block", 64, 256, 1, 1}},
    {"oscar_cov", 2.25, 2.25, 0, false, {"block", 64, 256, 1, 1}},
    {"oscar_cov_exact", 2.25, 2.25, 0, false, {"block", 64, 256, 1, 1}},
    {"oscar_cov_centered", 2.25, 2.25, 0, true, {"block", 64, 256, 1, 1}},
    {"optr", 2.25, 2.25, 0, true, {"block", 64, 256, 1, 1}},
    {"oscar_optr", 2.25, 2.25, 0, true, {"block", 64, 256, 1, 1}},
};

/// Bits per element of a cache of `tokens` tokens with this much history.
double bits(const Expected& e, int64_t key_history, int64_t value_history, int64_t tokens) {
  const auto all = static_cast<double>(tokens);
  const auto side = [&](double history_bits, int64_t history) {
    const auto n = static_cast<double>(history);
    return n * history_bits + (all - n) * 16;
  };
  double sum = side(e.key_bits, key_history) + side(e.value_bits, value_history);
  sum +=
      static_cast<double>(key_history) * e.token_scale_bits / (2 * 128);  // two heads share a scale
  if (e.center) sum += 32;                                                // fp32, once a layer
  return sum / (2 * all);
}

}  // namespace

TEST_CASE("D35 sinks of 64, windows of 256 and groups of 128: the table to three decimals",
          "[memory]") {
  struct Row {
    const char* params;
    double at_1k, at_4k, at_32k, at_128k;
  };
  const auto row = GENERATE(
      values<Row>({{"fp16", 6.547, 3.324, 2.384, 2.284}, {"fp32", 6.719, 3.555, 2.632, 2.533}}));
  CAPTURE(row.params);
  const method::Recipe method = recipe(
      "quarot_windows", {{"key.codec.params", row.params}, {"value.codec.params", row.params}});
  const metrics::Measured at_1k = run(sample_of(1024), method, {"memory"});
  const metrics::Measured at_4k = run(sample_of(4096), method, {"memory"});
  const auto near = [](double value) { return Approx(value).margin(0.0005).epsilon(0); };
  CHECK(scalar(at_1k, "bits_per_element") == near(row.at_1k));
  CHECK(scalar(at_4k, "bits_per_element") == near(row.at_4k));
  for (const metrics::Measured* measured : {&at_1k, &at_4k}) {
    CHECK(scalar(*measured, "bits_at_32k") == near(row.at_32k));
    CHECK(scalar(*measured, "bits_at_128k") == near(row.at_128k));
  }
  // By parts at T = 1,024: 704 tokens of history, 320 in full precision, two sides of 2·128
  // elements a token.
  const double size = std::string(row.params) == "fp32" ? 4 : 2;
  CHECK(scalar(at_1k, "bytes_codes") == 2 * 704 * 2 * 32);
  CHECK(scalar(at_1k, "bytes_params") == 2 * 704 * 2 * 2 * size);
  CHECK(scalar(at_1k, "bytes_window") == 2 * 320 * 2 * 128 * 2);
  for (const char* name : {"bytes_scales", "bytes_centers", "bytes_padding", "rotation_bytes"}) {
    CHECK(scalar(at_1k, name) == 0.0);
  }
  CHECK(scalar(at_1k, "bits_per_element") ==
        Approx(formula(2 + 16 * size / 128, 320, 1024)).epsilon(1e-12));
}

TEST_CASE("history bits of groups of 32, 64 and 128 with fp16 and fp32 parameters", "[memory]") {
  const auto [group, fp16, fp32] =
      GENERATE(table<int64_t, double, double>({{32, 3.0, 4.0}, {64, 2.5, 3.0}, {128, 2.25, 2.5}}));
  for (const auto& [params, expected] :
       {std::pair{"fp16", fp16}, std::pair{"bf16", fp16}, std::pair{"fp32", fp32}}) {
    const metrics::Measured measured = run(sample_of(512),
                                           recipe("kivi", {{"group", group},
                                                           {"window.recent", 128},
                                                           {"key.codec.params", params},
                                                           {"value.codec.params", params}}),
                                           {"memory"});
    CHECK(scalar(measured, "bits_per_element_hist") == expected);
  }
}

TEST_CASE("D35 bits of every preset against the formula, now and at 8k, 32k and 128k", "[memory]") {
  const int64_t tokens = 1024;
  const data::Sample sample = sample_of(tokens);
  data::Sample calibration = cases::gaussian_sample({1, 2, 2, 512, 128}, 510);
  for (const Expected& e : kPresets) {
    CAPTURE(e.id);
    method::Recipe method = recipe(e.id);
    if (method::is_learned(method)) {
      // The bits do not depend on what is learned.
      method = recipe(e.id, {{"calibrate.steps", 0},
                             {"calibrate.tokens", 256},
                             {"calibrate.sink", 4},
                             {"calibrate.recent", 16},
                             {"calibrate.queries", 4}});
    }
    const metrics::Measured measured = run(sample, method, {"memory"}, &calibration);
    plain::Decoder decoder(e.rule);
    int64_t length = 0;
    plain::Decoder::Seen seen;
    const bool buffered = e.rule.flush != "block";
    const int64_t cycle = buffered ? e.rule.recent : std::max(e.rule.key_group, e.rule.value_group);
    for (; length < tokens; ++length) seen = decoder.step();
    CHECK(scalar(measured, "bits_per_element") ==
          Approx(bits(e, seen.key, seen.value, tokens)).epsilon(1e-12));
    for (const auto& [name, most] : {std::pair{"bits_at_8k", 8192}, std::pair{"bits_at_32k", 32768},
                                     std::pair{"bits_at_128k", 131072}}) {
      CAPTURE(name);
      double sum = 0;
      while (length < most) {
        seen = decoder.step();
        if (++length > most - cycle) sum += bits(e, seen.key, seen.value, length);
      }
      CHECK(scalar(measured, name) == Approx(sum / static_cast<double>(cycle)).epsilon(1e-12));
    }
    if (e.rule.keys) {
      const double scale = e.token_scale_bits / (2 * 128);
      const auto keys = static_cast<double>(measured.hist_key[1] - measured.hist_key[0]);
      const auto values = static_cast<double>(measured.hist_value[1] - measured.hist_value[0]);
      CHECK(scalar(measured, "bits_per_element_hist") ==
            Approx((keys * (e.key_bits + scale) + values * e.value_bits) / (keys + values))
                .epsilon(1e-12));
    }
    CHECK(scalar(measured, "bytes_centers") == (e.center ? 2 * 128 * 4 : 0));
    // A covariance rotation is one matrix a side, a learned one is one for each of two heads.
    const bool covariance =
        get_text(method.settings, "key.rotate") == "covariance_hadamard" && e.rule.keys;
    const double matrices = covariance ? 2 : method::is_learned(method) ? 4 : 0;
    CHECK(scalar(measured, "rotation_bytes") == matrices * 128 * 128 * 4);
  }
}

TEST_CASE("token scales and centres count what they take", "[memory]") {
  data::Sample sample = cases::gaussian_sample({3, 2, 4, 64, 32, DType::bf16}, 520, {63});
  const data::Sample calibration = cases::gaussian_sample({1, 2, 4, 64, 32}, 521);
  const auto bytes = [&](const char* name, const Settings& edits) {
    return scalar(run(sample, recipe("int2_naive", edits), {"memory"}, &calibration), name);
  };
  // 63 tokens of history (the own one is not), three sequences, two heads.
  CHECK(bytes("bytes_scales", {{"key.token_scale", "l2_heads"}}) == 63 * 3 * 4);
  CHECK(bytes("bytes_scales", {{"key.token_scale", "l2_head"}}) == 63 * 3 * 2 * 4);
  CHECK(bytes("bytes_scales", {{"key.token_scale", "max_head"},
                               {"key.token_scale_params", "fp16"}}) == 63 * 3 * 2 * 2);
  CHECK(bytes("bytes_scales", {{"key.token_scale", "l2_heads"},
                               {"value.token_scale", "l2_head"},
                               {"value.token_scale_params", "bf16"}}) ==
        63 * 3 * 4 + 63 * 3 * 2 * 2);
  // Once a layer, whatever the number of sequences.
  CHECK(bytes("bytes_centers", {{"key.center", "head_mean"}}) == 2 * 32 * 4);
  CHECK(bytes("bytes_centers", {{"key.center", "head_mean"}, {"value.center", "head_mean"}}) ==
        2 * 2 * 32 * 4);
  CHECK(bytes("rotation_bytes", {{"key.rotate", "random_orthogonal"}}) == 32 * 32 * 4);
  CHECK(bytes("rotation_bytes", {{"key.rotate", "hadamard"}}) == 0);
  CHECK(bytes("rotation_bytes", {{"key.rotate", "covariance"}, {"key.covariance_scope", "head"}}) ==
        2 * 32 * 32 * 4);
}

TEST_CASE("D35 parts add up to bits per element", "[memory]") {
  const data::Sample sample = cases::gaussian_sample({2, 2, 4, 200, 32, DType::fp16}, 530, {199});
  const data::Sample calibration = cases::gaussian_sample({1, 2, 4, 64, 32}, 531);
  const metrics::Measured measured = run(
      sample,
      recipe("oscar_ots", {{"key.center", "head_mean"}, {"window.sink", 7}, {"window.recent", 64}}),
      {"memory"}, &calibration);
  double sum = 0;
  for (const char* part : {"bytes_codes", "bytes_params", "bytes_scales", "bytes_centers",
                           "bytes_window", "bytes_padding"}) {
    sum += scalar(measured, part);
  }
  CHECK(scalar(measured, "bits_per_element") ==
        Approx(8 * sum / (2.0 * 2 * 2 * 200 * 32)).epsilon(1e-14));
}

TEST_CASE("places of promoted channels are billed, however few", "[memory]") {
  // Sinks of 32 and one page of 128 tokens, two sequences.
  const data::Sample sample = cases::gaussian_sample({2, 2, 2, 170, 16, DType::bf16}, 540, {169});
  const auto codes = [&](const char* id) {
    return scalar(run(sample, recipe(id), {"memory"}), "bytes_codes");
  };
  constexpr int kPages = 2 * 2, kPlace = 128 * 2 / 8 + 1;  // bytes of a channel with its place
  const double plain = codes("kivi_sink");
  // Two channels, or four, of 128 tokens with 2 bits more, and a byte for each place.
  CHECK(codes("kitty") == plain + kPages * 2 * kPlace);
  CHECK(codes("kitty_pro") == plain + kPages * 4 * kPlace);
}

TEST_CASE("outliers are billed as the history's tokens have them", "[memory]") {
  const cases::Shape shape{3, 2, 4, 90, 16, DType::bf16};
  data::Sample sample = cases::with_more(cases::gaussian_sample(shape, 550, {89}), 551);
  const data::Sample calibration = cases::with_more(cases::gaussian_sample(shape, 552), 553);
  const method::Recipe kvquant = recipe("kvquant_nuq2");
  const metrics::Measured measured = run(sample, kvquant, cases::kAll, &calibration);
  // By counting: encode the history alone, sequence by sequence.
  calibrate::CalibrationStore store{std::filesystem::path()};
  const calibrate::Prepared made =
      calibrate::prepare(kvquant, 2, 16, 0, 0, cases::calibration_of(calibration), store, {});
  const auto held = [&](const calibrate::PreparedSide& side, const at::Tensor& tokens,
                        const int64_t* range) {
    double bytes = 0;
    for (int64_t b = 0; b < 3; ++b) {
      const at::Tensor history = tokens[b].narrow(1, range[0], range[1] - range[0]);
      const at::Tensor entering = side.transform.forward(history, 0, {});
      bytes += static_cast<double>(side.codec->encode(entering, side.shared).code_bytes());
    }
    return bytes;
  };
  CHECK(scalar(measured, "bytes_codes") == held(made.key, sample.more.k_pre(), measured.hist_key) +
                                               held(made.value, sample.v, measured.hist_value));
  // The same where only memory is measured.
  const metrics::Measured alone = run(sample, kvquant, {"memory"}, &calibration);
  for (const auto& [name, array] : alone.metrics) {
    CAPTURE(name);
    CHECK(scalar(measured, name) == scalar(alone, name));
  }
}

TEST_CASE("samples too short to quantize tell what longer caches take", "[memory]") {
  const cases::Shape shape{1, 2, 4, 4096, 32, DType::bf16};
  const data::Sample all = cases::with_more(cases::gaussian_sample(shape, 560, {4095}), 561);
  data::Sample few = cases::gaussian_sample({1, 2, 4, 20, 32, DType::bf16}, 560, {19});
  few = cases::with_more(few, 561);
  for (const char* id : {"kvquant_nuq2", "oscar_ots", "kitty"}) {
    CAPTURE(id);
    const Settings sinks = {{"window.sink", 24}};
    const auto bits = [&](const data::Sample& sample) {
      return scalar(run(sample, recipe(id, sinks), {"memory"}, &all), "bits_at_128k");
    };
    // Outliers of 20 tokens and of 4,096 are about as many; all else is the same.
    const double rounding = id == std::string("kvquant_nuq2") ? 0.15 : 1e-12;
    CHECK(bits(few) == Approx(bits(all)).epsilon(rounding));
  }
}
