// The backends answer the same question: metrics of `cpu` are those of `reference`.
#include <cmath>
#include <set>

#include "cache/packed_format.h"
#include "catch.h"
#include "data/synthetic_params.h"
#include "metrics/cases.h"

using namespace kvlab;
using cases::recipe;

namespace {

data::Sample synthetic(int64_t d, const std::string& pattern, int64_t tokens, int64_t passage,
                       const data::ProbeChoice& probes) {
  Settings params;
  for (const Param& param : data::synthetic_params()) params[param.key] = param.fallback;
  params["pattern"] = pattern;
  params["tokens"] = tokens;
  params["kv_heads"] = 2;
  params["q_heads"] = 6;
  params["head_dim"] = d;
  params["hidden"] = 32;
  params["passage"] = passage;
  return data::make_synthetic(params, 0, probes);
}

/// Bytes and bits differ by padding alone.
const std::set<std::string> kPadded = {"bits_per_element", "bits_at_8k", "bits_at_32k",
                                       "bits_at_128k", "bytes_padding"};

/// How far a metric may be off: outputs by the kernels' bar, all else by what float32 leaves.
double tolerance(const std::string& name) {
  if (name.starts_with("out_") || name.starts_with("wo_")) return 2e-3;
  if (name.starts_with("attn_") || name.starts_with("logit_")) return 1e-3;
  return 1e-4;
}

void compare(const metrics::Arrays& reference, const metrics::Arrays& packed) {
  REQUIRE(reference.size() == packed.size());
  for (const auto& [name, array] : reference) {
    CAPTURE(name);
    REQUIRE(packed.count(name) == 1);
    REQUIRE(packed.at(name).sizes() == array.sizes());
    const at::Tensor expected = array.to(at::kDouble).flatten();
    const at::Tensor found = packed.at(name).to(at::kDouble).flatten();
    for (int64_t i = 0; i < expected.numel(); ++i) {
      const double e = expected[i].item<double>();
      const double f = found[i].item<double>();
      CAPTURE(i, e, f);
      if (kPadded.count(name) > 0) {
        CHECK(f >= e);
      } else if (std::isnan(e) || std::isinf(e)) {
        CHECK((std::isnan(e) ? std::isnan(f) : f == e));
      } else if (name == "saturated") {
        // A value at the edge of a level may round to either side of it.
        CHECK(std::abs(f - e) <= 2 + 1e-3 * e);
      } else {
        CHECK(std::abs(f - e) <= tolerance(name) * std::abs(e) + 2e-6);
      }
    }
  }
}

}  // namespace

TEST_CASE("cpu and reference agree on every preset that has kernels", "[metrics]") {
  const auto [d, pattern] =
      GENERATE(std::pair(64, "low_norm_sink"), std::pair(128, "mean_dominated"));
  const metrics::SampleContext context(
      synthetic(d, pattern, 700, 0, {.placement = "strided", .count = 24}));
  const data::Sample& sample = context.sample();
  const auto calibration =
      cases::calibration_of(synthetic(d, pattern, 400, 1, {.placement = "all", .count = 0}));
  calibrate::CalibrationStore store{std::filesystem::path()};
  for (const std::string& id : method::method_ids()) {
    CAPTURE(d, pattern, id);
    const method::Recipe method =
        recipe(id, id.find("optr") != std::string::npos ? Settings{{"calibrate.tokens", 400},
                                                                   {"calibrate.steps", 1},
                                                                   {"calibrate.sink", 4},
                                                                   {"calibrate.recent", 32}}
                                                        : Settings{});
    if (cache::packed_refusal(method.settings, d, sample.dtype)) continue;
    const calibrate::Prepared prepared =
        calibrate::prepare(method, sample.kv_heads(), d, 0, 0, calibration, store, {});
    const metrics::Measured reference =
        metrics::evaluate(context, prepared, method, cases::kAll, "reference");
    const metrics::Measured packed =
        metrics::evaluate(context, prepared, method, cases::kAll, "cpu");
    compare(reference.metrics, packed.metrics);
    CHECK(at::equal(at::isnan(reference.tokens.at("k_se")), at::isnan(packed.tokens.at("k_se"))));
    CHECK(packed.hist_key[1] == reference.hist_key[1]);
  }
}

TEST_CASE("cpu and reference agree on sequences, flush rules and histories that are empty",
          "[metrics]") {
  const auto index = GENERATE(range(0, 5));
  const std::vector<std::pair<std::string, Settings>> all = {
      {"oscar_ots", {{"window.sink", 200}}},
      {"kivi", {{"window.recent", 32}, {"window.sink", 5}}},
      {"int2_naive_windows",
       {{"group", 32}, {"window.flush", "ring"}, {"window.recent", 5}, {"window.sink", 0}}},
      {"oscar_ots",
       {{"key.token_scale", "max_head"}, {"key.order", "scale_rotate"}, {"window.recent", 32}}},
      {"oscar_ots", {{"key.rotate_block", 16}, {"value.rotate_block", 32}, {"window.recent", 32}}},
  };
  const auto& [id, edits] = all[static_cast<size_t>(index)];
  CAPTURE(id, index);
  const data::Sample sample =
      cases::gaussian_sample({2, 2, 4, 131, 64, DType::fp16}, 990 + static_cast<uint64_t>(index));
  const method::Recipe method = recipe(id, edits);
  compare(cases::run(sample, method).metrics,
          cases::run(sample, method, cases::kAll, nullptr, 0, "cpu").metrics);
}

TEST_CASE("logits that grow beyond float32's softmax are judged in float64", "[metrics]") {
  data::Sample sample = cases::gaussian_sample({1, 1, 2, 96, 64, DType::bf16}, 995);
  sample.q = sample.q * 40;
  const method::Recipe method = recipe("int2_naive");
  compare(cases::run(sample, method).metrics,
          cases::run(sample, method, cases::kAll, nullptr, 0, "cpu").metrics);
}

TEST_CASE("a packed backend refuses what it lacks", "[metrics]") {
  const data::Sample sample = cases::gaussian_sample({1, 1, 1, 96, 64, DType::bf16}, 996);
  const auto measure = [&](const data::Sample& data, const Settings& edits) {
    return cases::run(data, recipe("kivi", edits), cases::kAll, nullptr, 0, "cpu");
  };
  CHECK_THROWS_AS(measure(sample, {{"group", 16}}), Unsupported);
  const data::Sample single = cases::gaussian_sample({1, 1, 1, 96, 64, DType::fp32}, 996);
  CHECK_THROWS_AS(measure(single, {}), Unsupported);
  const data::Sample many = cases::gaussian_sample({1, 1, 17, 160, 64, DType::bf16}, 996);
  CHECK_THROWS_AS(measure(many, {}), Unsupported);
}

TEST_CASE("D55 a packed backend refuses NaN and infinite values by name, wherever they stand",
          "[metrics]") {
  const auto [name, member] = GENERATE(table<const char*, at::Tensor data::Sample::*>(
      {{"keys", &data::Sample::k}, {"values", &data::Sample::v}, {"queries", &data::Sample::q}}));
  const auto bad =
      GENERATE(std::numeric_limits<double>::quiet_NaN(), -std::numeric_limits<double>::infinity());
  const auto row = GENERATE(0, 70, 95);  // kivi with a window of 32: two in the history
  data::Sample sample = cases::gaussian_sample({1, 2, 4, 96, 64, DType::bf16}, 997);
  at::Tensor& poisoned = sample.*member;
  poisoned = poisoned.clone();
  poisoned[0][1][row][3] = bad;
  const std::string reason =
      "backends cpu and cuda: " + std::string(name) + " that hold NaN or infinity have no kernel";
  for (const auto& [id, edits] : std::map<std::string, Settings>{
           {"bf16", {}}, {"kivi", {{"window.recent", 32}}}, {"quarot", {}}}) {
    CAPTURE(name, bad, row, id);
    const method::Recipe method = recipe(id, edits);
    const auto measure = [&] { cases::run(sample, method, cases::kAll, nullptr, 0, "cpu"); };
    CHECK_THROWS_AS(measure(), Unsupported);
    CHECK_THROWS_WITH(measure(), reason);
    CHECK_NOTHROW(cases::run(sample, method));
  }
}
