// D15: a setting that a resolved recipe keeps must change what comes out, or say why it does not. A
// stage that was dead all along would show here.
#include <cmath>
#include <map>
#include <set>

#include "catch.h"
#include "method/schema.h"
#include "metrics/cases.h"

using namespace kvlab;
using cases::recipe;

namespace {

constexpr int64_t kHeadDim = 32;

/// Multiples of 1/4, so that unrotated groups have ties; channels of different size and offset, one
/// loud token.
at::Tensor tied(at::IntArrayRef shape, uint64_t seed) {
  at::Tensor x = plain::whole(-12, 12, shape, seed) / 4;
  x.select(3, 5).mul_(6);
  x.select(3, 17).add_(9);
  x.select(2, 40).mul_(8);
  return x;
}

data::Sample sample_of(uint64_t seed) {
  data::Sample sample = cases::gaussian_sample({1, 2, 4, 96, kHeadDim}, seed);
  sample.k = tied({1, 2, 96, kHeadDim}, seed + 10);
  sample.v = tied({1, 2, 96, kHeadDim}, seed + 11);
  // Queries that prefer some directions, other ones for each KV head.
  sample.q.narrow(1, 0, 2).narrow(3, 0, 4).mul_(3);
  sample.q.narrow(1, 2, 2).narrow(3, 10, 4).mul_(3);
  return cases::with_more(std::move(sample), seed + 12);
}

void flatten(const nlohmann::json& node, const std::string& prefix, std::set<std::string>& keys) {
  for (const auto& [name, value] : node.items()) {
    const std::string key = prefix.empty() ? name : prefix + "." + name;
    if (value.is_object()) {
      flatten(value, key, keys);
    } else {
      keys.insert(key);
    }
  }
}

std::vector<nlohmann::json> other_values(const std::string& key, const nlohmann::json& now) {
  static const std::map<std::string, std::vector<nlohmann::json>> chosen = {
      {"key.codec.bits", {3, 8}},
      {"value.codec.bits", {3, 8}},
      {"key.codec.group", {16}},
      {"value.codec.group", {16}},
      {"key.codec.clip", {"none", 0.6}},
      {"value.codec.clip", {"none", 0.6}},
      {"key.codec.kind", {"passthrough", "float"}},
      {"value.codec.kind", {"passthrough", "float"}},
      {"key.codec.least_range", {30.0}},
      {"value.codec.least_range", {30.0}},
      {"key.codec.boost", {0.5}},
      {"value.codec.boost", {0.5}},
      {"key.codec.boost_bits", {3, 8}},
      {"value.codec.boost_bits", {3, 8}},
      {"key.codec.boost_tokens", {8}},
      {"value.codec.boost_tokens", {8}},
      {"key.codec.ratio", {"none", 0.9}},
      {"value.codec.ratio", {"none", 0.9}},
      {"key.codec.levels", {"-1.6, -0.4, 0.4, 1.6"}},
      {"value.codec.levels", {"-1.6, -0.4, 0.4, 1.6"}},
      {"key.codec.high_levels", {"-2, -1, 0, 1"}},
      {"value.codec.high_levels", {"-2, -1, 0, 1"}},
      {"key.codec.high_share", {0.0}},
      {"value.codec.high_share", {0.0}},
      {"key.codec.high_bits", {3}},
      {"value.codec.high_bits", {3}},
      {"key.rotate_split", {0.0}},
      {"value.rotate_split", {0.0}},
      {"key.codec.sparse", {0.1}},
      {"value.codec.sparse", {0.2}},
      {"key.codec.signpost_steps", {1}},
      {"value.codec.signpost_steps", {1}},
      {"key.codec.width", {2}},
      {"value.codec.width", {2}},
      {"key.codec.entries", {8}},
      {"value.codec.entries", {8}},
      {"key.codec.codebook_stride", {2}},
      {"value.codec.codebook_stride", {2}},
      {"key.codec.codebook_steps", {1}},
      {"value.codec.codebook_steps", {1}},
      {"window.sink", {11}},
      {"window.recent", {32}},
      {"calibrate.tokens", {48}},
      {"calibrate.steps", {2}},
      {"calibrate.lr", {0.005}},
      {"calibrate.lambda", {0.0}},
      {"calibrate.margin", {1.0}},
      {"calibrate.check_every", {1}},
      {"calibrate.queries", {3}},
      {"calibrate.bits", {4}},
      {"calibrate.group", {8}},
      {"calibrate.clip_key", {0.7}},
      {"calibrate.clip_value", {0.7}},
      {"calibrate.sink", {6}},
      {"calibrate.recent", {12}},
      {"key.rotate_block", {0, 16}},
      {"value.rotate_block", {0, 16}},
      {"key.mix_tokens", {0, 8}},
      {"value.mix_tokens", {0, 8}},
      {"key.rotate_heads", {1}},
      {"value.rotate_heads", {1}},
      {"key.basis_damping", {0.3}},
      {"value.basis_damping", {0.3}},
      {"key.token_scale_threshold", {1.0}},
      {"value.token_scale_threshold", {1.0}},
      {"window.tni", {1.0}},
      {"window.min", {12}},
      {"window.max", {70}},
      {"protect.tokens", {1}},
      {"evict.sink", {0}},
      {"evict.recent", {30}},
      {"evict.heavy", {5}},
  };
  if (const auto found = chosen.find(key); found != chosen.end()) return found->second;
  const Param* param = method::find_param(key);
  REQUIRE(param != nullptr);
  if (param->type == Param::Type::boolean) return {!now.get<bool>()};
  std::vector<nlohmann::json> others;
  for (const std::string& choice : param->choices) {
    if (now != choice && !choice.starts_with(method::kFilePrefix)) others.emplace_back(choice);
  }
  return others;
}

/// What a row would show of errors and attention. Sizes and norms are left out: they may change by
/// themselves.
metrics::Arrays outputs(const method::Recipe& recipe) {
  static const data::Sample sample = sample_of(600);
  static const data::Sample calibration = sample_of(700);
  const metrics::Measured measured =
      cases::run(sample, recipe, {"error", "attention", "tokens"}, &calibration);
  metrics::Arrays all = measured.metrics;
  all.insert(measured.tokens.begin(), measured.tokens.end());
  return all;
}

/// Beyond what another order of summation does.
bool differ(const metrics::Arrays& a, const metrics::Arrays& b) {
  for (const auto& [name, array] : a) {
    if (!at::allclose(array, b.at(name), 1e-9, 1e-14, /*equal_nan=*/true)) return true;
  }
  return false;
}

/// Edits of both sides, and those of the windows.
Settings both(const Settings& edits) {
  Settings all;
  for (const auto& [key, value] : edits) {
    if (key.starts_with("window.")) {
      all[key] = value;
      continue;
    }
    all["key." + key] = value;
    all["value." + key] = value;
  }
  return all;
}

/// Recipes that use every key between them. Learning is cut short everywhere.
std::vector<method::Recipe> contexts() {
  const Settings quick = {{"calibrate.tokens", 64},          {"calibrate.steps", 4},
                          {"calibrate.queries", 8},          {"calibrate.lr", 0.05},
                          {"calibrate.group", 32},           {"calibrate.sink", 2},
                          {"calibrate.recent", 4},           {"calibrate.clip_key", 0.9},
                          {"calibrate.clip_value", 0.9},     {"key.codec.entries", 16},
                          {"key.codec.codebook_stride", 1},  {"value.codec.entries", 16},
                          {"value.codec.codebook_stride", 1}};
  const auto with = [&](const std::string& id, Settings edits) {
    edits.merge(Settings(quick));
    return recipe(id, edits);
  };
  return {
      with("kivi", {{"group", 8},
                    {"window.recent", 16},
                    {"window.sink", 3},
                    {"key.codec.clip", 0.8},
                    {"key.codec.clip_scope", "group"},
                    {"value.codec.clip", 0.8}}),
      with("int2_naive_windows", {{"group", 8},
                                  {"window.recent", 10},
                                  {"window.sink", 3},
                                  {"key.codec.clip", 0.8},
                                  {"value.codec.clip", 0.8}}),
      with("oscar_ots", {{"group", 8},
                         {"window.recent", 16},
                         {"key.center", "head_mean"},
                         {"key.token_scale", "max_head"},
                         {"key.token_scale_params", "fp16"},
                         {"value.token_scale", "mean_abs_head"},
                         {"value.token_scale_params", "fp16"},
                         {"value.center", "head_mean"}}),
      with("oscar_ots", {{"group", 8},
                         {"window.recent", 16},
                         {"key.token_scale_params", "fp16"},
                         {"value.token_scale", "l2_head"},
                         {"value.token_scale_params", "bf16"}}),
      with("quarot", {{"group", 8},
                      {"window.recent", 16},
                      {"key.codec.clip", 0.8},
                      {"value.codec.clip", 0.8}}),
      with("oscar_cov", {{"group", 8}, {"window.recent", 16}, {"window.sink", 3}}),
      with("oscar_cov", {{"window.recent", 16}, {"window.sink", 3}}),  // one group a head row
      with("oscar_optr", {{"group", 8}, {"window.recent", 16}, {"window.sink", 3}}),
      // What single published codes do otherwise.
      with("kcvt_base", both({{"codec.group", 8},
                              {"codec.arithmetic", "bf16"},
                              {"codec.decode_arithmetic", "bf16"},
                              {"codec.hold_zero", true},
                              {"codec.zero_group", "unit_range"}})),
      with("int2_naive_windows", both({{"codec.group", 8},
                                       {"codec.clip", 0.8},
                                       {"codec.clip_search", "bisect"},
                                       {"codec.params", "bf16"},
                                       {"codec.codes_from", "exact"},
                                       {"codec.zero", "code_offset"}})),
      // Other kinds of codes.
      with("kitty", both({{"codec.kind", "boosted"},
                          {"codec.axis", "channel"},
                          {"codec.group", 8},
                          {"codec.boost_tokens", 16},
                          {"codec.least_range", 5.0},
                          {"window.flush", "full"},
                          {"window.recent", 16},
                          {"window.sink", 3}})),
      with("oscar_cov_lloydmax", both({{"codec.group", 16}, {"codec.clip", 0.8}})),
      with("turboquant_mse2",
           both({{"codec.group", 16}, {"codec.clip_search", "bisect"}, {"codec.clip", 0.8}})),
      with("turboquant_plus25", both({{"codec.high_bits", 2}, {"codec.bits", 3}})),
      with("turboquant_qjl2", both({{"codec.kind", "sketched_codebook"}})),
      with("kvquant_nuq2", {}),
      with("int2_naive", both({{"codec.kind", "vector_codebook"},
                               {"codec.entries", 16},
                               {"codec.codebook_steps", 4},
                               {"codec.width", 8},
                               {"codec.codebook_stride", 1}})),
      with("mxfp4", both({{"codec.group", 8}})),
      with("oscar_optr", {{"window.recent", 16},
                          {"key.objective", "channel_variance"},
                          {"value.objective", "channel_variance"}}),
      with("int2_naive", {{"group", 8},
                          {"key.space", "pre_rope"},
                          {"key.reorder", "sum"},
                          {"key.rotate", "hadamard"},
                          {"key.rotate_heads", 2},
                          {"value.reorder", "sum"},
                          {"value.rotate", "signed_hadamard"},
                          {"value.rotate_heads", 2},
                          {"protect.kind", "massive"},
                          {"protect.tokens", 4}}),
      with("int2_naive", {{"group", 8}, {"key.basis", "balanced"}, {"value.basis", "balanced"}}),
      with("oscar_cov",
           both({{"codec.group", 8}, {"composition", "h_r_pbr"}, {"rotation_params", "bf16"}})),
      with("oscar_cov", both({{"codec.group", 8}, {"covariance", "own"}})),
      with("hadamard", both({{"codec.axis", "channel"},
                             {"codec.group", 8},
                             {"rotate_block", 8},
                             {"mix_tokens", 16},
                             {"window.recent", 16}})),
      with("quarot_token", both({{"codec.row", "token"}})),
      with("kvquant_nuq2",
           both({{"codec.axis", "token"}, {"codec.row", "token"}, {"codec.signpost_norm", true}})),
      with("kcvt_base", {{"group", 8},
                         {"window.flush", "dynamic"},
                         {"window.tni", 4.0},
                         {"window.min", 4},
                         {"window.max", 30},
                         {"key.token_scale", "l2_head"},
                         {"key.token_scale_params", "adaptive"},
                         {"key.token_scale_threshold", 30.0},
                         {"value.token_scale", "l2_head"},
                         {"value.token_scale_params", "adaptive"},
                         {"value.token_scale_threshold", 30.0}}),
      with("int2_naive", {{"group", 8},
                          {"evict.kind", "heavy_hitter"},
                          {"evict.sink", 3},
                          {"evict.recent", 20},
                          {"evict.heavy", 12}}),
  };
}

/// Settings that are known to change nothing although no part says so. See the test's end.
const std::set<std::string> kOwed = {"key.codec.zero_group: \"unit_step\"",
                                     "value.codec.zero_group: \"unit_step\""};

/// Whether both sides have evenly spaced codes (or none).
bool is_uniform(const method::Recipe& recipe) {
  for (const char* side : {"key", "value"}) {
    const std::string kind = get_text(recipe.side(side), "codec.kind");
    if (kind != "uniform" && kind != "passthrough") return false;
  }
  return true;
}

}  // namespace

TEST_CASE("D15 every setting that a resolved recipe keeps changes some output or says why not",
          "[switches]") {
  std::map<std::string, int>
      changed;  // "key: value" to the number of contexts in which it did something
  std::set<std::string> excused;
  for (const method::Recipe& base : contexts()) {
    REQUIRE_FALSE(method::unsupported(base, kHeadDim));
    const metrics::Arrays before = outputs(base);
    const nlohmann::json canonical = method::canonical(base, kHeadDim);
    std::set<std::string> keys;
    flatten(canonical, "", keys);
    for (const std::string& key : keys) {
      for (const nlohmann::json& value : other_values(key, base.settings.at(key))) {
        method::Recipe edited = base;
        REQUIRE_FALSE(method::apply_edit(edited, key, value));
        if (method::unsupported(edited, kHeadDim)) continue;
        if (method::canonical(edited, kHeadDim) == canonical) continue;  // the same by another name
        const std::string name = key + ": " + value.dump();
        CAPTURE(base.id, name);
        const bool differs = differ(before, outputs(edited));
        changed[name] += differs ? 1 : 0;
        if (method::no_effect(base, key, kHeadDim) && method::no_effect(edited, key, kHeadDim)) {
          // A reason that is given must be true.
          CHECK_FALSE(differs);
          excused.insert(name);
        }
      }
    }
  }
  for (const auto& [name, times] : changed) {
    CAPTURE(name);
    const bool owed = kOwed.count(name) > 0;
    CHECK((times > 0) == !owed);
  }
  // All keys of a recipe were met in some context.
  std::set<std::string> met;
  for (const auto& [name, times] : changed) met.insert(name.substr(0, name.find(':')));
  for (const std::string& key : method::recipe_keys()) {
    if (key == "group" || key == "calibrate.clip") continue;  // shorthands for two
    if (key == "value.space") continue;                       // RoPE does not turn values
    CAPTURE(key);
    CHECK(met.count(key) == 1);
  }
  // The reasons that contract section 3 names were met too.
  CHECK(excused.count("key.bit_reversal: false") == 1);
  CHECK(excused.count("key.order: \"scale_rotate\"") == 1);
}

TEST_CASE("D15 a permutation of the channels is no step at one group a head row", "[switches]") {
  const method::Recipe with = recipe("oscar_cov", {{"window.recent", 16}, {"window.sink", 3}});
  const method::Recipe without = recipe("oscar_cov", {{"window.recent", 16},
                                                      {"window.sink", 3},
                                                      {"key.bit_reversal", false},
                                                      {"value.bit_reversal", false}});
  CHECK_FALSE(differ(outputs(with), outputs(without)));
  // At smaller groups it moves channels between them.
  CHECK(
      differ(outputs(recipe("oscar_cov", {{"group", 8}, {"window.recent", 16}})),
             outputs(recipe("oscar_cov",
                            {{"group", 8}, {"window.recent", 16}, {"key.bit_reversal", false}}))));
}

TEST_CASE("D15 a learned rotation of no steps is its base", "[switches]") {
  const Settings edits = {{"window.recent", 16},    {"window.sink", 3},
                          {"calibrate.tokens", 64}, {"calibrate.queries", 8},
                          {"calibrate.group", 32},  {"calibrate.sink", 2},
                          {"calibrate.recent", 4},  {"calibrate.steps", 0}};
  const Settings base = {{"window.recent", 16}, {"window.sink", 3}};
  CHECK_FALSE(
      differ(outputs(recipe("optr", edits)), outputs(recipe("quarot_windows_centered", base))));
  CHECK_FALSE(
      differ(outputs(recipe("oscar_optr", edits)), outputs(recipe("oscar_cov_centered", base))));
}

TEST_CASE("every preset with codes of another kind keeps most of what it is given", "[switches]") {
  // Without a grid to refine: a rotation that is applied twice would be an error of order one.
  const data::Sample sample =
      cases::with_more(cases::gaussian_sample({1, 2, 4, 512, 32}, 810, {300, 511}), 812);
  data::Sample calibration =
      cases::with_more(cases::gaussian_sample({1, 2, 4, 1200, 32}, 811), 813);
  calibration.w_o = sample.w_o;  // of one model
  int met = 0;
  for (const std::string& id : method::method_ids()) {
    CAPTURE(id);
    if (is_uniform(recipe(id))) continue;
    ++met;
    const metrics::Measured measured = cases::run(sample, recipe(id), cases::kAll, &calibration);
    // One bit of codebook has an error of 1 − 2/π, and its sketch adds as much.
    CHECK(cases::scalar(measured, "k_nmse") < 0.62);
    if (get_text(recipe(id).settings, "value.basis") == "none") {
      CHECK(cases::scalar(measured, "v_nmse") < 0.25);
    } else {
      // A basis spends its levels where W_O looks: it has less error there, and more elsewhere.
      const metrics::Measured plain =
          cases::run(sample, recipe(id, {{"value.basis", "none"}}), cases::kAll, &calibration);
      CHECK(cases::scalar(measured, "wo_rel_v") < cases::scalar(plain, "wo_rel_v"));
    }
    CHECK(cases::scalar(measured, "k_nmse") > 0.0);
    CHECK(cases::scalar(measured, "nonfinite") == 0.0);
    CHECK(cases::scalar(measured, "out_cos") > 0.8);
    CHECK(cases::scalar(measured, "bits_per_element_hist") < 9.0);
  }
  CHECK(met >= 11);
}

TEST_CASE("D43 every preset is near the identity at 8 bits with exact parameters", "[switches]") {
  // Only the codec is lossy: a rotation that is applied twice, or a centre that is not added back,
  // would be an error of order one.
  const data::Sample sample =
      cases::with_more(cases::gaussian_sample({1, 2, 4, 512, 32}, 800, {300, 511}), 802);
  const data::Sample calibration =
      cases::with_more(cases::gaussian_sample({1, 2, 4, 512, 32}, 801), 803);
  for (const std::string& id : method::method_ids()) {
    CAPTURE(id);
    if (!is_uniform(recipe(id))) continue;
    Settings edits;
    for (const std::string side : {"key", "value"}) {
      edits[side + ".codec.bits"] = 8;
      edits[side + ".codec.params"] = "fp32";
      edits[side + ".codec.clip"] = "none";
    }
    // A token that loses its place in a pool has codes that its own range did not shape.
    edits["protect.kind"] = "none";
    edits.merge(Settings{{"calibrate.tokens", 256},
                         {"calibrate.steps", 2},
                         {"calibrate.sink", 4},
                         {"calibrate.recent", 16},
                         {"calibrate.queries", 8}});
    const metrics::Measured measured =
        cases::run(sample, recipe(id, edits), cases::kAll, &calibration);
    // A step of range/255 or, on the symmetric grid, 2·max/254: an error of step²/12 a value of
    // variance 1. A group of 32 to 128 normals spans at most 7.
    CHECK(cases::scalar(measured, "k_nmse") < 7.0 * 7.0 / (254 * 254) / 12 * 1.1);
    CHECK(cases::scalar(measured, "v_nmse") < 7.0 * 7.0 / (254 * 254) / 12 * 1.1);
    CHECK(cases::scalar(measured, "wo_rel") < 0.02);
    CHECK(cases::scalar(measured, "out_cos") > 0.9998);
    if (id != "bf16") CHECK(cases::scalar(measured, "k_nmse") > 0.0);
  }
}
