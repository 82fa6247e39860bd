// The nineteen presets against contract section 4.5, written out by hand here.
#include <map>

#include "catch.h"
#include "method/recipe.h"

using namespace kvlab;
using nlohmann::json;

namespace {

constexpr int64_t kHeadDim = 128;

json codec(const char* axis, int group, const char* grid, const char* rounding, json clip) {
  json result = {{"kind", "uniform"}, {"bits", 2},    {"axis", axis},
                 {"group", group},    {"grid", grid}, {"rounding", rounding},
                 {"params", "fp16"},  {"clip", clip}};
  if (grid == std::string("float_zero")) result["zero"] = "value";
  if (clip.is_number()) {
    result["clip_kind"] = "order";
    result["clip_scope"] = "row";
    result["clip_source"] = "dynamic";
  }
  return result;
}

json side(json codec, const json& transforms = json::object()) {
  json result = {{"center", "none"}, {"rotate", "none"}, {"token_scale", "none"}};
  result.update(transforms);
  result["codec"] = std::move(codec);
  return result;
}

json window(int sink, int recent, const char* flush) {
  return {{"sink", sink}, {"recent", recent}, {"flush", flush}};
}

struct Expected {
  json key;
  json value;
  json window;
  bool calibrated = false;
};

const json kHadamard = {{"rotate", "hadamard"}};
const json kL2Heads = {
    {"token_scale", "l2_heads"}, {"token_scale_params", "fp32"}, {"norm_op", "sqrt_div"}};
const json kL2HeadsRotated = {{"rotate", "hadamard"},
                              {"token_scale", "l2_heads"},
                              {"token_scale_params", "fp32"},
                              {"norm_op", "sqrt_div"},
                              {"order", "rotate_scale"}};

json covariance(const char* form) {
  return {{"rotate", "covariance_hadamard"},
          {"covariance", form},
          {"covariance_scope", "layer"},
          {"bit_reversal", true}};
}

json centered(json transforms) {
  transforms["center"] = "head_mean";
  return transforms;
}

std::map<std::string, Expected> contract_table() {
  const json passthrough = {{"codec", {{"kind", "passthrough"}}}};
  const json naive = codec("token", 128, "float_zero", "half_even", "none");
  const json clip96 = codec("token", 128, "float_zero", "half_up", 0.96);
  const json clip92 = codec("token", 128, "float_zero", "half_up", 0.92);
  const json kcvt_key = codec("channel", 32, "rounded_zero", "half_even", "none");
  const json kcvt_value = codec("token", 32, "rounded_zero", "half_even", "none");
  const json none = window(0, 0, "block");
  const json oscar = window(64, 256, "block");
  const json full = window(0, 128, "full");
  const json over_hadamard = {{"rotate", "learned"}, {"learned_over", "hadamard"}};
  json over_covariance = covariance("code");
  over_covariance["rotate"] = "learned";
  over_covariance["learned_over"] = "covariance_hadamard";

  return {
      {"bf16", {passthrough, passthrough, json::object()}},
      {"int2_naive", {side(naive), side(naive), none}},
      {"int2_naive_symmetric",
       {side(codec("token", 128, "symmetric", "half_even", "none")),
        side(codec("token", 128, "symmetric", "half_even", "none")), none}},
      {"int2_naive_windows", {side(clip96), side(clip92), oscar}},
      {"kivi",
       {side(codec("channel", 32, "float_zero", "half_even", "none")),
        side(codec("token", 32, "float_zero", "half_even", "none")), window(0, 128, "kivi")}},
      {"kivi_g128",
       {side(codec("channel", 128, "float_zero", "half_even", "none")), side(naive),
        window(0, 128, "kivi")}},
      {"kcvt_base", {side(kcvt_key), side(kcvt_value), full}},
      {"token_scale", {side(kcvt_key, kL2Heads), side(kcvt_value), full}},
      {"hadamard", {side(kcvt_key, kHadamard), side(kcvt_value, kHadamard), full}},
      {"oscar_ots", {side(kcvt_key, kL2HeadsRotated), side(kcvt_value, kHadamard), full}},
      {"quarot",
       {side(codec("token", 128, "rounded_zero", "half_even", "none"), kHadamard),
        side(codec("token", 128, "rounded_zero", "half_even", "none"), kHadamard), none}},
      {"quarot_token",
       {side(codec("token", 128, "float_zero", "half_up", "none"), kHadamard),
        side(codec("token", 128, "float_zero", "half_up", "none"), kHadamard), none}},
      {"quarot_windows", {side(clip96, kHadamard), side(clip92, kHadamard), oscar}},
      {"quarot_windows_centered",
       {side(clip96, centered(kHadamard)), side(clip92, kHadamard), oscar, true}},
      {"oscar_cov",
       {side(clip96, covariance("code")), side(clip92, covariance("code")), oscar, true}},
      {"oscar_cov_exact",
       {side(clip96, covariance("paper")), side(clip92, covariance("paper")), oscar, true}},
      {"oscar_cov_centered",
       {side(clip96, centered(covariance("code"))), side(clip92, covariance("code")), oscar, true}},
      {"optr", {side(clip96, centered(over_hadamard)), side(clip92, over_hadamard), oscar, true}},
      {"oscar_optr",
       {side(clip96, centered(over_covariance)), side(clip92, over_covariance), oscar, true}},
  };
}

}  // namespace

TEST_CASE("presets stand in the contract's order, methods of later parts behind them") {
  const std::vector<std::string> ids = method::method_ids();
  REQUIRE(ids.size() >= 19);
  CHECK(std::vector<std::string>(ids.begin(), ids.begin() + 19) ==
        std::vector<std::string>{"bf16", "int2_naive", "int2_naive_symmetric", "int2_naive_windows",
                                 "kivi", "kivi_g128", "kcvt_base", "token_scale", "hadamard",
                                 "oscar_ots", "quarot", "quarot_token", "quarot_windows",
                                 "quarot_windows_centered", "oscar_cov", "oscar_cov_exact",
                                 "oscar_cov_centered", "optr", "oscar_optr"});
}

TEST_CASE("presets are the contract's table") {
  const auto table = contract_table();
  REQUIRE(table.size() == 19);
  for (const auto& [id, expected] : table) {
    INFO(id);
    const method::Recipe& recipe = method::preset(id);
    const json canonical = method::canonical(recipe, kHeadDim);
    CHECK(canonical.at("key") == expected.key);
    CHECK(canonical.at("value") == expected.value);
    CHECK(canonical.at("window") == expected.window);
    CHECK(method::needs_calibration(recipe) == expected.calibrated);
    CHECK_FALSE(method::uses_seed(recipe));
    CHECK_FALSE(method::unsupported(recipe, kHeadDim).has_value());
    // Only one preset makes a choice that changes nothing, as its paper does.
    CHECK(method::notes(recipe, kHeadDim).empty() == (id != "oscar_cov_exact"));
  }
}

TEST_CASE("OptR learns with its published settings") {
  const json expected = {
      {"tokens", 1024},     {"steps", 80},   {"lr", 0.02},   {"lambda", 1.0}, {"margin", 0.0},
      {"check_every", 20},  {"queries", 64}, {"bits", 2},    {"group", 128},  {"clip_key", 0.96},
      {"clip_value", 0.92}, {"sink", 64},    {"recent", 256}};
  for (const char* id : {"optr", "oscar_optr"}) {
    CHECK(method::canonical(method::preset(id), kHeadDim).at("calibrate") == expected);
  }
  CHECK_FALSE(method::canonical(method::preset("oscar_cov"), kHeadDim).contains("calibrate"));
}

TEST_CASE("quarot names its clip although it is off") {
  const Settings key = method::preset("quarot").side("key");
  CHECK(get_text(key, "codec.clip_kind") == "range");
  CHECK(get_real(key, "codec.clip") == 1.0);
}

TEST_CASE("every preset says what it is and where its sources differ") {
  for (const std::string& id : method::method_ids()) {
    INFO(id);
    const method::Recipe& recipe = method::preset(id);
    CHECK_FALSE(recipe.title.empty());
    // Code that was read, or a word that there was none.
    CHECK(
        (!recipe.source.code.empty() || recipe.source.origin.starts_with("from the description")));
    CHECK_FALSE(recipe.source.differs.empty());
    for (const std::string& sentence : recipe.source.differs) CHECK(sentence.back() == '.');
  }
  CHECK(method::preset("oscar_cov").source.published_bits == 2.28);
  CHECK_FALSE(method::preset("oscar_cov_exact").source.published_bits.has_value());
}

TEST_CASE("on a smaller head a preset's group of 128 becomes the head, with a note") {
  const method::Recipe recipe = method::preset("quarot_windows");
  const json canonical = method::canonical(recipe, 64);
  CHECK(canonical.at("key").at("codec").at("group") == 64);
  CHECK(canonical.at("value").at("codec").at("group") == 64);
  CHECK(method::notes(recipe, 64) ==
        std::vector<std::string>{"key: the per-token group 128 became the head dimension 64",
                                 "value: the per-token group 128 became the head dimension 64"});
  CHECK(method::canonical(method::preset("kivi_g128"), 64).at("key").at("codec").at("group") ==
        128);
}

TEST_CASE("D86: the two methods that differ only by case are never guessed") {
  for (const char* name : {"oscar", "OSCAR", "OScaR"}) {
    CHECK_THROWS_WITH(method::preset(name),
                      std::string("method '") + name +
                          "' is ambiguous, papers differ only by case: write 'oscar_ots' (OScaR, "
                          "arXiv:2605.19660) or 'oscar_cov' (OSCAR, arXiv:2605.17757)");
  }
}

TEST_CASE("an unknown method is refused with the nearest one") {
  CHECK_THROWS_WITH(method::preset("kvii"), "unknown method 'kvii' (did you mean 'kivi'?)");
  CHECK_THROWS_WITH(method::preset("zzzzzzzzzzzzzzzzzz"), "unknown method 'zzzzzzzzzzzzzzzzzz'");
  CHECK_FALSE(method::wrong_id("kivi").has_value());
}
