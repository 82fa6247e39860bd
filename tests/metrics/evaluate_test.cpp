#include "metrics/evaluate.h"

#include <cmath>

#include "catch.h"
#include "metrics/blocks.h"
#include "metrics/cases.h"
#include "metrics/plain_metrics.h"
#include "metrics_catalog/catalog.h"

using namespace kvlab;
using cases::gaussian_sample;
using cases::kAll;
using cases::recipe;
using cases::run;
using cases::scalar;
using cases::Shape;

namespace {

std::vector<double> list(const at::Tensor& x) {
  const at::Tensor flat = x.to(at::kDouble).flatten().contiguous();
  return {flat.const_data_ptr<double>(), flat.const_data_ptr<double>() + flat.numel()};
}

/// B = 2, GQA 3. Multiples of 1/16 with few bits: rotating by a Hadamard matrix of 16 is exact, so
/// that both ways feed the codec the same numbers.
data::Sample exact_sample() {
  data::Sample sample;
  const auto grid = [](at::IntArrayRef shape, uint64_t seed) {
    return (plain::whole(-40, 40, shape, seed) / 16).to(at::kBFloat16);
  };
  sample.dtype = DType::bf16;
  sample.k = grid({2, 2, 45, 16}, 200);
  sample.v = grid({2, 2, 45, 16}, 201);
  sample.q = grid({2, 6, 7, 16}, 202);
  sample.w_o = plain::gaussian({5, 96}, 203);
  sample.positions = at::tensor({0, 2, 11, 20, 33, 40, 44}, at::kLong);
  return sample;
}

void compare(const metrics::Measured& measured,
             const std::map<std::string, plain::Numbers>& expected) {
  auto arrays = measured.metrics;
  arrays.insert(measured.tokens.begin(), measured.tokens.end());
  for (const auto& [name, numbers] : expected) {
    CAPTURE(name);
    REQUIRE(arrays.count(name) == 1);
    const std::vector<double> found = list(arrays.at(name));
    REQUIRE(found.size() == numbers.size());
    for (size_t i = 0; i < found.size(); ++i) {
      CAPTURE(i);
      if (std::isnan(numbers[i])) {
        CHECK(std::isnan(found[i]));
      } else {
        CHECK(found[i] == Approx(numbers[i]).epsilon(1e-10).margin(1e-13));
      }
    }
    arrays.erase(name);
  }
  for (const auto& [name, array] : arrays) FAIL_CHECK("no expectation for " << name);
}

/// All blocks together are the metric that they are sums of.
void check_blocks(const metrics::Measured& measured) {
  for (const char* name :
       {"k_mse", "k_nmse", "v_mse", "v_nmse", "logit_mse", "attn_kl", "attn_top1", "out_rel",
        "out_rel_k", "out_rel_v", "out_cos", "wo_rel", "wo_rel_k", "wo_rel_v"}) {
    CAPTURE(name);
    REQUIRE(measured.blocks.count(name) == 1);
    const at::Tensor sums = measured.blocks.at(name).sum(1);
    at::Tensor of_heads = sums.select(1, 0) / sums.select(1, 1);
    if (metrics::is_norm_ratio(name)) of_heads = of_heads.sqrt();
    CHECK(of_heads.mean().item<double>() ==
          Approx(metrics::scalar_of(name, measured.metrics.at(name))).epsilon(1e-12));
  }
  CHECK(measured.blocks.size() == 14);
}

}  // namespace

TEST_CASE("block sums are of 128 positions, apart for each sequence", "[metrics]") {
  const at::Tensor over = at::arange(8, at::kDouble).view({2, 1, 4});
  const at::Tensor positions = at::tensor({5, 127, 128, 400}, at::kLong);
  const at::Tensor sums = metrics::block_sums(over, at::ones_like(over), positions);
  CHECK(list(sums) == std::vector<double>{1, 2, 2, 1, 3, 1, 9, 2, 6, 1, 7, 1});
  CHECK(sums.sizes() == at::IntArrayRef({1, 6, 2}));
  const at::Tensor tail = metrics::block_sums(at::ones({100}, at::kDouble), /*first_position=*/500);
  CHECK(list(tail) == std::vector<double>{12, 12, 88, 88});
}

TEST_CASE("every metric equals loops over its definition", "[metrics]") {
  const data::Sample sample = exact_sample();
  data::Sample calibration = exact_sample();
  calibration.k = (plain::whole(-40, 60, {2, 2, 45, 16}, 204) / 16).to(at::kBFloat16);

  struct Case {
    std::string preset;
    Settings edits;
    plain::Rule rule;
  };
  const std::vector<Case> all = {
      // Per channel with everything in front of it, buffers emptied together.
      {"oscar_ots",
       {{"key.center", "head_mean"},
        {"key.codec.group", 4},
        {"value.codec.group", 8},
        {"window.sink", 3},
        {"window.recent", 8}},
       {"full", 3, 8, 4, 1}},
      // KIVI's two windows, scales of each head in bf16 on both sides.
      {"kivi",
       {{"key.codec.group", 8},
        {"value.codec.group", 16},
        {"key.token_scale", "max_head"},
        {"key.token_scale_params", "bf16"},
        {"value.rotate", "hadamard"},
        {"value.token_scale", "mean_abs_head"},
        {"value.order", "scale_rotate"},
        {"window.recent", 16}},
       {"kivi", 0, 16, 8, 1}},
      // Per token with clips.
      {"int2_naive_windows",
       {{"window.sink", 5},
        {"window.recent", 6},
        {"key.rotate", "hadamard"},
        {"key.codec.bits", 3}},
       {"block", 5, 6, 1, 1}},
      // The ring, inverse norms, a symmetric grid with fp32 parameters.
      {"quarot_token",
       {{"window.flush", "ring"},
        {"window.recent", 4},
        {"key.token_scale", "l2_head"},
        {"key.norm_op", "rsqrt"},
        {"value.codec.grid", "symmetric"},
        {"value.codec.params", "fp32"},
        {"value.codec.bits", 4}},
       {"ring", 0, 4, 1, 1}},
      // Groups of 4 and 6 tokens flush by twelve.
      {"kcvt_base",
       {{"key.codec.group", 4},
        {"value.codec.axis", "channel"},
        {"value.codec.group", 6},
        {"window.recent", 5},
        {"window.flush", "block"}},
       {"block", 0, 5, 4, 6}},
  };
  for (const Case& c : all) {
    CAPTURE(c.preset);
    const method::Recipe edited = recipe(c.preset, c.edits);
    REQUIRE_FALSE(method::unsupported(edited, 16));
    plain::Numbers center;
    if (get_text(edited.settings, "key.center") == "head_mean") {
      center = list(calibration.k.to(at::kDouble).mean(2).mean(0).to(at::kFloat));
    }
    const metrics::Measured measured = run(sample, edited, kAll, &calibration);
    compare(measured, plain::metrics_of(sample, edited, c.rule, center));
    for (const metrics::MetricInfo& info : metrics::catalog()) {
      if (kAll.count(info.measure) > 0) CHECK(measured.metrics.count(info.name) == 1);
    }
    check_blocks(measured);
    // The two parts of an error vector add up: by the triangle inequality the whole is no longer
    // than both.
    CHECK(scalar(measured, "wo_rel") <=
          scalar(measured, "wo_rel_k") + scalar(measured, "wo_rel_v") + 1e-12);
  }
}

TEST_CASE("the scalar of a metric is the mean over heads, of a count the sum", "[metrics]") {
  const at::Tensor array = at::tensor({1.0, 2.0, 6.0}, at::kDouble);
  CHECK(metrics::scalar_of("k_mse", array) == 3.0);
  CHECK(metrics::scalar_of("saturated", array) == 9.0);
  CHECK(metrics::scalar_of("nonfinite", array) == 9.0);
}

TEST_CASE("a measure gives its own metrics and no others", "[metrics]") {
  const data::Sample sample = gaussian_sample({}, 210, {40, 95});
  for (const metrics::MetricInfo& info : metrics::catalog()) {
    const auto& models = metrics::model_measures();
    const bool is_of_models = std::find(models.begin(), models.end(), info.measure) != models.end();
    if (info.measure == "kernel_time" || is_of_models) continue;
    const metrics::Measured measured =
        run(sample, recipe("kivi", {{"window.recent", 32}}), {info.measure});
    CHECK(measured.metrics.count(info.name) == 1);
    for (const auto& [name, array] : measured.metrics) {
      CHECK(metrics::find_metric(name)->measure == info.measure);
    }
  }
}

TEST_CASE("a passthrough method has no error, no history and its captured bits", "[metrics]") {
  const auto dtype = GENERATE(DType::bf16, DType::fp32);
  Shape shape;
  shape.dtype = dtype;
  const metrics::Measured measured = run(gaussian_sample(shape, 220, {10, 95}), recipe("bf16"));
  for (const char* name :
       {"k_mse", "k_nmse", "v_mse", "v_nmse", "saturated", "nonfinite", "logit_mse", "out_rel",
        "out_rel_k", "out_rel_v", "wo_rel", "wo_rel_k", "wo_rel_v", "bytes_codes", "bytes_params",
        "bytes_scales", "bytes_centers", "rotation_bytes"}) {
    CAPTURE(name);
    CHECK(scalar(measured, name) == 0.0);
  }
  CHECK(scalar(measured, "attn_kl") == 0.0);
  CHECK(scalar(measured, "attn_top1") == 1.0);
  CHECK(scalar(measured, "out_cos") == Approx(1.0).epsilon(1e-12));
  for (const char* name :
       {"tni_ratio_in", "tni_block_ratio", "tni_bound", "tni_block_mse", "bits_per_element_hist"}) {
    CAPTURE(name);
    CHECK(std::isnan(scalar(measured, name)));
  }
  CHECK(scalar(measured, "tni_ratio") > 1.0);
  const double bits = dtype == DType::fp32 ? 32 : 16;
  for (const char* name : {"bits_per_element", "bits_at_8k", "bits_at_32k", "bits_at_128k"}) {
    CHECK(scalar(measured, name) == bits);
  }
  CHECK(measured.hist_key[0] == measured.hist_key[1]);
  CHECK(measured.hist_value[0] == measured.hist_value[1]);
}

TEST_CASE("one passthrough side keeps its part exact", "[metrics]") {
  const data::Sample sample = gaussian_sample({}, 230, {50, 95});
  const Settings window = {{"window.recent", 32}};
  Settings keys_only = window, values_only = window;
  keys_only["value.codec.kind"] = "passthrough";
  values_only["key.codec.kind"] = "passthrough";
  const metrics::Measured keys = run(sample, recipe("kivi", keys_only));
  CHECK(scalar(keys, "wo_rel_v") == 0.0);
  CHECK(scalar(keys, "wo_rel") == scalar(keys, "wo_rel_k"));
  CHECK(scalar(keys, "v_mse") == 0.0);
  CHECK(scalar(keys, "k_mse") > 0.0);
  CHECK(scalar(keys, "bits_per_element_hist") == 3.0);
  CHECK(keys.hist_value[1] == 0);
  const metrics::Measured values = run(sample, recipe("kivi", values_only));
  CHECK(scalar(values, "wo_rel_k") == 0.0);
  CHECK(scalar(values, "attn_kl") == 0.0);
  CHECK(scalar(values, "wo_rel_v") > 0.0);
  CHECK(std::isnan(scalar(values, "tni_ratio_in")));
}

TEST_CASE("D21 the tail that fills no group stays in full precision", "[metrics]") {
  // U(5,6), T = 40, G = 32: the error of the span is that of whole groups, that of the tail is
  // nothing.
  Shape shape = {1, 1, 1, 40, 128};
  data::Sample sample = gaussian_sample(shape, 240, {39});
  sample.k = plain::flat_random({1, 1, 40, 128}, 241) + 5.0;
  const metrics::Measured measured =
      run(sample, recipe("kivi", {{"window.recent", 0}, {"key.codec.params", "fp32"}}));
  CHECK(scalar(measured, "k_mse") == Approx(0.00767).epsilon(0.1));  // 128 groups only
  CHECK(measured.hist_key[1] == 32);
  const at::Tensor errors = measured.tokens.at("k_se")[0][0];
  CHECK(errors.narrow(0, 0, 32).gt(0).all().item<bool>());
  CHECK(errors.narrow(0, 32, 8).isnan().all().item<bool>());
}

TEST_CASE("errors and saturation over nothing are NaN and 0", "[metrics]") {
  // A sequence that is shorter than its first group.
  const metrics::Measured measured =
      run(gaussian_sample({1, 2, 4, 20, 32}, 250, {19}), recipe("kivi"));
  for (const char* name : {"k_mse", "k_nmse", "v_mse", "tni_ratio_in", "tni_block_ratio",
                           "tni_bound", "tni_block_mse", "bits_per_element_hist"}) {
    CAPTURE(name);
    CHECK(std::isnan(scalar(measured, name)));
  }
  for (const char* name :
       {"saturated", "nonfinite", "bytes_codes", "bytes_params", "wo_rel", "attn_kl"}) {
    CAPTURE(name);
    CHECK(scalar(measured, name) == 0.0);
  }
  CHECK(scalar(measured, "bits_per_element") == 32.0);
  CHECK(scalar(measured, "bits_at_32k") < 4.0);  // the layout is known although nothing was stored
}

TEST_CASE("0/0 is 0: zero keys, values and outputs", "[metrics]") {
  data::Sample sample = gaussian_sample({1, 2, 4, 96, 32}, 260, {95});
  sample.k.zero_();
  sample.v.zero_();
  const metrics::Measured measured = run(sample, recipe("oscar_ots", {{"window.recent", 32}}));
  for (const char* name : {"k_mse", "k_nmse", "v_nmse", "out_rel", "out_rel_k", "out_rel_v",
                           "out_cos", "wo_rel", "tni_cv", "saturated", "nonfinite"}) {
    CAPTURE(name);
    CHECK(scalar(measured, name) == 0.0);
  }
  CHECK(std::isinf(scalar(measured, "tni_ratio")));
  CHECK(std::isinf(scalar(measured, "tni_ratio_heads")));
}

TEST_CASE("decoded values that are not finite are counted by side and head", "[metrics]") {
  // lo = −3e38, hi = 3e38: their distance leaves float32, so the scale is the largest float and the
  // upper levels are infinite.
  data::Sample sample = gaussian_sample({1, 2, 2, 8, 8}, 270, {7});
  sample.v[0][1][2][3] = 3e38f;
  sample.v[0][1][2][4] = -3e38f;
  const metrics::Measured measured = run(
      sample, recipe("int2_naive", {{"key.codec.params", "fp32"}, {"value.codec.params", "fp32"}}),
      {"error"});
  const std::vector<double> counts = list(measured.metrics.at("nonfinite"));
  CHECK(counts[0] == 0.0);
  CHECK(counts[1] >= 1.0);
}

TEST_CASE("D49 D98 a sink destroyed by per-channel groups shows in divergence and agreement",
          "[metrics]") {
  const Settings item = {{"pattern", "low_norm_sink"},
                         {"tokens", 512},
                         {"kv_heads", 4},
                         {"q_heads", 8},
                         {"head_dim", 128},
                         {"dtype", "fp32"},
                         {"sink_form", "flat"}};
  const data::Sample sample = data::make_synthetic(item, 0, {"last", 32});
  // kivi's window, groups and grid in both rows: the token scale alone differs.
  const metrics::Measured without = run(sample, recipe("kivi", {{"window.recent", 32}}));
  const metrics::Measured with =
      run(sample, recipe("kivi", {{"window.recent", 32}, {"key.token_scale", "l2_heads"}}));
  const auto sink = [](const metrics::Measured& m) {
    return (m.tokens.at("k_se")[0].select(1, 0) / m.tokens.at("k_norm")[0].select(1, 0).square())
        .mean()
        .item<double>();
  };
  CHECK(sink(without) > 10 * sink(with));
  CHECK(scalar(without, "attn_kl") > 2 * scalar(with, "attn_kl"));
  CHECK(scalar(without, "attn_top1") < scalar(with, "attn_top1"));
  CHECK(scalar(without, "tni_ratio") > 5);
  CHECK(scalar(with, "tni_ratio_in") == Approx(1.0).epsilon(0.5));
  CHECK(scalar(without, "tni_ratio_in") == Approx(scalar(without, "tni_ratio")).epsilon(1e-6));
}

TEST_CASE("D96 reconstruction, score, attention and output errors come together", "[metrics]") {
  const metrics::Measured measured =
      run(gaussian_sample({}, 340, {95}), recipe("kivi", {{"window.recent", 32}}),
          {"error", "attention"});
  for (const char* name :
       {"k_mse", "k_nmse", "logit_mse", "attn_kl", "out_rel", "wo_rel", "attn_top1"}) {
    CHECK(measured.metrics.count(name) == 1);
  }
}
