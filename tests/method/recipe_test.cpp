#include "method/recipe.h"

#include "catch.h"

using namespace kvlab;
using nlohmann::json;

namespace {

method::Recipe parse(const std::string& yaml) {
  std::vector<Problem> problems;
  method::Recipe recipe = method::parse_recipe(yaml, "m.yaml", problems);
  for (const Problem& problem : problems) UNSCOPED_INFO(problem.message);
  REQUIRE(problems.empty());
  return recipe;
}

/// "line:column: message" of every mistake.
std::vector<std::string> mistakes(const std::string& yaml) {
  std::vector<Problem> problems;
  method::parse_recipe(yaml, "m.yaml", problems);
  std::vector<std::string> result;
  for (const Problem& problem : problems) {
    CHECK(problem.file == "m.yaml");
    result.push_back(std::to_string(problem.line) + ":" + std::to_string(problem.column) + ": " +
                     problem.message);
  }
  return result;
}

method::Recipe edited(const std::string& id, const std::vector<std::pair<std::string, json>>& set) {
  method::Recipe recipe = method::preset(id);
  for (const auto& [key, value] : set) {
    const auto wrong = method::apply_edit(recipe, key, value);
    INFO(key << ": " << wrong.value_or(""));
    REQUIRE_FALSE(wrong.has_value());
  }
  return recipe;
}

std::string wrong_edit(const std::string& key, const json& value) {
  method::Recipe recipe = method::preset("kivi");
  const json before = recipe.settings;
  const std::string wrong = method::apply_edit(recipe, key, value).value_or("accepted");
  CHECK(json(recipe.settings) == before);
  return wrong;
}

}  // namespace

TEST_CASE("the value side takes what it does not name from the key side, but centre and scale") {
  const method::Recipe recipe = parse(R"(
id: mine
key:
  center: head_mean
  rotate: covariance_hadamard
  covariance: paper
  token_scale: l2_head
  codec: {bits: 4, axis: channel, group: 16, grid: rounded_zero, clip: .9, params: bf16}
value:
  codec: {axis: token, clip: none}
)");
  const Settings value = recipe.side("value");
  CHECK(value.at("center") == "none");
  CHECK(value.at("token_scale") == "none");
  CHECK(value.at("rotate") == "covariance_hadamard");
  CHECK(value.at("covariance") == "paper");
  CHECK(value.at("codec.bits") == 4);
  CHECK(value.at("codec.group") == 16);
  CHECK(value.at("codec.grid") == "rounded_zero");
  CHECK(value.at("codec.params") == "bf16");
  CHECK(value.at("codec.axis") == "token");
  CHECK(value.at("codec.clip") == "none");
  CHECK(recipe.side("key").at("codec.clip") == .9);
}

TEST_CASE("an edit of the key side leaves the value side alone") {
  const method::Recipe recipe = edited("oscar_ots", {{"key.rotate", "none"}});
  CHECK(recipe.settings.at("key.rotate") == "none");
  CHECK(recipe.settings.at("value.rotate") == "hadamard");
}

TEST_CASE("'group' sets both codec groups and nothing else") {
  const method::Recipe before = method::preset("optr");
  const method::Recipe after = edited("optr", {{"group", 32}});
  for (const auto& [key, value] : after.settings) {
    INFO(key);
    const bool is_group = key == "key.codec.group" || key == "value.codec.group";
    CHECK(value == (is_group ? json(32) : before.settings.at(key)));
  }
}

TEST_CASE("'calibrate.clip' stands for both clips") {
  const method::Recipe recipe = edited("optr", {{"calibrate.clip", 0.5}});
  CHECK(recipe.settings.at("calibrate.clip_key") == 0.5);
  CHECK(recipe.settings.at("calibrate.clip_value") == 0.5);
}

TEST_CASE("wrong edits change nothing and say why") {
  CHECK(wrong_edit("key.codec.bits", 9) ==
        "'key.codec.bits' must be a whole number from 1 to 8, found 9");
  CHECK(wrong_edit("key.codec.bits", 2.5) ==
        "'key.codec.bits' must be a whole number from 1 to 8, found 2.5");
  CHECK(wrong_edit("group", "32") ==
        "'group' must be a whole number from 1 to 1048576, found '32'");
  CHECK(wrong_edit("key.codec.clip", -0.1) ==
        "'key.codec.clip' must be none or a number of at least 0, found -0.1");
  CHECK(wrong_edit("key.codec.grid", "rounded_zer") ==
        "'key.codec.grid' must be one of float_zero, rounded_zero, symmetric, found 'rounded_zer' "
        "(did you mean 'rounded_zero'?)");
  CHECK(wrong_edit("key.bit_reversal", "yes") ==
        "'key.bit_reversal' must be true or false, found 'yes'");
  CHECK(wrong_edit("window.recent", -1) ==
        "'window.recent' must be a whole number from 0 to 16777216, found -1");
  CHECK(wrong_edit("calibrate.tokens", 5000) ==
        "'calibrate.tokens' must be a whole number from 1 to 4096, found 5000");
  CHECK(wrong_edit("window.recnt", 1) ==
        "unknown key 'window.recnt' of a method (did you mean 'window.recent'?)");
  CHECK(wrong_edit("key.rotate", "file") ==
        "'key.rotate' must be one of none, hadamard, random_orthogonal, file:PATH, covariance, "
        "covariance_hadamard, learned, signed_hadamard, found 'file'");
  CHECK(wrong_edit("key.codec", json::object()) ==
        "unknown key 'key.codec' of a method (did you mean 'key.order'?)");
}

TEST_CASE("D83: mistakes of a method come all at once, each with its place") {
  CHECK(mistakes(R"(id: mine
title: 7
resid_length: 64
key:
  bits: 2
  rotate: hadamart
  codec: {Group_size: 32, bits: 12, grid: rounded_zero}
window: {resid_length: 64}
space: pre_rope
)") == std::vector<std::string>{
           "2:8: 'title' must be text, found 7 (put it in quotes: \"7\")",
           "5:3: unknown key 'bits' in key (it belongs at key.codec.bits)",
           "6:11: 'key.rotate' must be one of none, hadamard, random_orthogonal, file:PATH, "
           "covariance, covariance_hadamard, learned, signed_hadamard, found 'hadamart' (did you "
           "mean 'hadamard'?)",
           "7:11: unknown key 'Group_size' in key.codec (did you mean 'group'?)",
           "7:33: 'key.codec.bits' must be a whole number from 1 to 8, found 12",
           "8:10: unknown key 'resid_length' in window (valid: sink, recent, flush, tni, min, max)",
           "3:1: unknown key 'resid_length' in the method (valid: id, title, source, key, value, "
           "window, protect, evict, calibrate, layers)",
           "9:1: unknown key 'space' in the method (valid: id, title, source, key, value, "
           "window, protect, evict, calibrate, layers)"});
}

TEST_CASE("other mistakes of a method") {
  CHECK(mistakes("key: {codec: {bits: 2}}") ==
        std::vector<std::string>{"1:1: a method needs an 'id'"});
  CHECK(mistakes("id: a\nkey: {boost: 2}") ==
        std::vector<std::string>{
            "2:7: key 'boost' is reserved for a part that this release does not have"});
  CHECK(mistakes("id: a\nkey: hadamard") ==
        std::vector<std::string>{"2:6: 'key' must be a map of keys, found 'hadamard'"});
  CHECK(mistakes("id: a\nid: b") ==
        std::vector<std::string>{"2:1: key 'id' is given twice (first on line 1)"});
  CHECK(mistakes("[1, 2]") ==
        std::vector<std::string>{"1:1: the method must be a map of keys, found a list"});
  CHECK(mistakes("id: {a: 1").front().find("YAML: ") != std::string::npos);
}

TEST_CASE("layer rules replace the whole recipe") {
  const method::Recipe recipe = parse(R"(
id: mine
key: {codec: {bits: 4}}
window: {recent: 64}
layers:
  "0-1": {use: bf16}
  "5": {use: kivi, set: {group: 64, window: {recent: 256}}}
  "7-9": {key: {codec: {bits: 8}}}
)");
  CHECK(method::on_layer(recipe, 0).settings == method::preset("bf16").settings);
  CHECK(method::on_layer(recipe, 1).settings == method::preset("bf16").settings);
  CHECK(method::on_layer(recipe, 2).settings == recipe.settings);
  CHECK(method::on_layer(recipe, 2).layers.empty());
  CHECK(method::on_layer(recipe, 5).settings.at("value.codec.group") == 64);
  CHECK(method::on_layer(recipe, 5).settings.at("window.recent") == 256);
  CHECK(method::on_layer(recipe, 8).settings.at("value.codec.bits") == 8);
  CHECK(method::on_layer(recipe, 8).settings.at("window.recent") == 0);
}

TEST_CASE("mistakes of layer rules") {
  CHECK(mistakes(R"(id: a
layers:
  first: {use: bf16}
  "0-3": {use: bf16}
  "2": {use: kvii}
  "4": {use: kivi, sett: {}}
  "5": {use: kivi, set: {grup: 3}}
)") == std::vector<std::string>{
           "3:3: layers must be a number or a range such as 0-1, found 'first'",
           "5:3: layers 2 already have a recipe (0-3)",
           "5:14: unknown method 'kvii' (did you mean 'kivi'?)",
           "6:20: unknown key 'sett' in layers.4 (did you mean 'set'?)",
           "7:26: unknown key 'grup' of a method (did you mean 'group'?)"});
}

TEST_CASE("canonical holds what means something and drops the rest") {
  const method::Recipe plain = method::preset("kcvt_base");
  const json before = method::canonical(plain, 128);
  // None of these is used by kcvt_base.
  const method::Recipe idle = edited("kcvt_base", {{"key.covariance", "paper"},
                                                   {"key.bit_reversal", false},
                                                   {"value.learned_over", "covariance"},
                                                   {"key.token_scale_params", "fp16"},
                                                   {"key.order", "scale_rotate"},
                                                   {"key.norm_op", "rsqrt"},
                                                   {"key.codec.zero", "code_offset"},
                                                   {"key.codec.clip_kind", "range"},
                                                   {"key.codec.clip_scope", "group"},
                                                   {"key.codec.clip_source", "calibrated"},
                                                   {"calibrate.steps", 3}});
  CHECK(method::canonical(idle, 128) == before);
  CHECK_FALSE(method::needs_calibration(idle));
  // The same keys, once what they belong to is on.
  CHECK(method::is_used(edited("kcvt_base", {{"key.token_scale", "max_head"}}),
                        "key.token_scale_params"));
  CHECK_FALSE(
      method::is_used(edited("kcvt_base", {{"key.token_scale", "max_head"}}), "key.norm_op"));
  CHECK_FALSE(method::is_used(edited("kcvt_base", {{"key.token_scale", "l2_head"}}), "key.order"));
  CHECK(method::is_used(
      edited("kcvt_base", {{"key.token_scale", "l2_head"}, {"key.rotate", "hadamard"}}),
      "key.order"));
  CHECK(method::is_used(edited("kcvt_base", {{"key.codec.clip", 0.9}}), "key.codec.clip_scope"));
  CHECK_FALSE(method::is_used(
      edited("kcvt_base", {{"key.codec.clip", 0.9}, {"key.codec.clip_source", "calibrated"}}),
      "key.codec.clip_scope"));
  CHECK(method::is_used(edited("kcvt_base", {{"key.rotate", "learned"}}), "calibrate.steps"));
}

TEST_CASE("clips that are off are one configuration") {
  const json none = method::canonical(method::preset("int2_naive"), 128);
  for (const json& off : {json(0), json(1), json(1.0), json(3.5)}) {
    CHECK(method::canonical(edited("int2_naive", {{"key.codec.clip", off}}), 128) == none);
  }
  CHECK(method::canonical(edited("int2_naive", {{"key.codec.clip", 0.99}}), 128) != none);
}

TEST_CASE("a passthrough side has no transform and two of them no window") {
  const method::Recipe recipe = edited("oscar_cov_centered", {{"key.codec.kind", "passthrough"}});
  CHECK(method::canonical(recipe, 128).at("key") == json{{"codec", {{"kind", "passthrough"}}}});
  CHECK(method::canonical(recipe, 128).at("window").at("recent") == 256);
  CHECK(method::needs_calibration(recipe));  // the values' covariance
  const method::Recipe both = edited("oscar_cov_centered", {{"key.codec.kind", "passthrough"},
                                                            {"value.codec.kind", "passthrough"}});
  CHECK(method::canonical(both, 128) == method::canonical(method::preset("bf16"), 128));
  CHECK_FALSE(method::needs_calibration(both));
  CHECK_FALSE(method::is_used(both, "window.recent"));
  CHECK_FALSE(method::is_used(both, "group"));
}

TEST_CASE("window rules that are the same by definition have one form") {
  CHECK(method::canonical(edited("kivi", {{"window.recent", 0}}), 128) ==
        method::canonical(edited("kivi", {{"window.recent", 0}, {"window.flush", "block"}}), 128));
  CHECK(method::canonical(edited("kcvt_base", {{"window.flush", "ring"}}), 128) ==
        method::canonical(edited("kcvt_base", {{"window.flush", "block"}}), 128));
  CHECK(method::canonical(edited("quarot", {{"window.flush", "ring"}}), 128) !=
        method::canonical(edited("quarot", {{"window.flush", "block"}}), 128));
  CHECK(method::canonical(edited("kcvt_base", {{"window.flush", "kivi"}}), 128) !=
        method::canonical(method::preset("kcvt_base"), 128));
}

TEST_CASE("D27: what was asked for is kept beside what takes effect") {
  const method::Recipe recipe = edited("kivi_g128", {{"window.recent", 0}});
  CHECK(method::requested(recipe, 64) ==
        Settings{{"value.codec.group", 128}, {"window.flush", "kivi"}});
  CHECK(method::notes(recipe, 64) ==
        std::vector<std::string>{"value: the per-token group 128 became the head dimension 64",
                                 "window.flush kivi is block here (window.recent is 0)"});
  CHECK(method::notes(edited("kcvt_base", {{"window.flush", "ring"}}), 128) ==
        std::vector<std::string>{"window.flush ring is block here (a side is per channel)"});
  CHECK(method::requested(method::preset("kivi"), 64).empty());
}

TEST_CASE("D25: windows and groups that do not go together are refused") {
  const auto refused = [](const std::string& id, int64_t recent, int64_t group, int64_t head_dim) {
    return method::unsupported(edited(id, {{"window.recent", recent}, {"group", group}}), head_dim)
        .value_or("fine");
  };
  CHECK(refused("kcvt_base", 96, 64, 128) ==
        "window.recent 96 is no multiple of the group of 64 tokens, as window.flush full needs");
  CHECK(refused("kivi", 16, 32, 128) ==
        "window.recent 16 is no multiple of the group of 32 tokens, as window.flush kivi needs");
  CHECK(refused("kivi", 128, 256, 128) ==
        "window.recent 128 is no multiple of the group of 256 tokens, as window.flush kivi needs");
  CHECK(refused("kivi", 0, 64, 128) == "fine");
  CHECK(refused("quarot_windows", 96, 64, 128) == "fine");
  CHECK(refused("quarot_token", 0, 64, 96) ==
        "key: a group of 64 channels does not divide the head dimension 96");
  CHECK(refused("kivi", 128, 64, 96) ==
        "value: a group of 64 channels does not divide the head dimension 96");
  CHECK(refused("quarot_token", 0, 100, 96) == "fine");  // the group becomes the head
}

TEST_CASE("flush kivi needs values that leave the window one by one") {
  const method::Recipe recipe = edited("kivi", {{"value.codec.axis", "channel"}});
  CHECK(method::unsupported(recipe, 128) ==
        "window.flush kivi needs values on axis token or passthrough, not axis channel");
  CHECK_FALSE(method::unsupported(
      edited("kivi", {{"value.codec.axis", "channel"}, {"window.recent", 0}}), 128));
  CHECK_FALSE(method::unsupported(edited("kivi", {{"value.codec.kind", "passthrough"}}), 128));
}

TEST_CASE("a full buffer holds whole groups of both sides") {
  method::Recipe recipe = edited("kcvt_base", {{"value.codec.axis", "channel"},
                                               {"key.codec.group", 32},
                                               {"value.codec.group", 48},
                                               {"window.recent", 96}});
  CHECK(method::flush_group(recipe) == 96);
  CHECK_FALSE(method::unsupported(recipe, 128));
  REQUIRE_FALSE(method::apply_edit(recipe, "window.recent", 128));
  CHECK(method::unsupported(recipe, 128).has_value());
  CHECK(method::flush_group(method::preset("quarot")) == 1);
  CHECK(method::flush_group(edited("kivi", {{"key.codec.kind", "passthrough"}})) == 1);
}

TEST_CASE("parts refuse what they cannot do") {
  CHECK(method::unsupported(method::preset("hadamard"), 100).value_or("").starts_with("key: "));
  CHECK_FALSE(method::unsupported(method::preset("hadamard"), 96));
  CHECK(method::unsupported(method::preset("oscar_cov"), 96) ==
        "key: bit reversal needs a head dimension that is a power of two, not 96");
  CHECK_FALSE(method::unsupported(
      edited("oscar_cov", {{"key.bit_reversal", false}, {"value.bit_reversal", false}}), 96));
  const auto half_way = method::unsupported(edited("quarot", {{"key.codec.clip", .9},
                                                              {"key.codec.clip_kind", "order"},
                                                              {"key.codec.params", "fp32"}}),
                                            128);
  CHECK(half_way.value_or("").find("exactly 1.5") != std::string::npos);
  CHECK(method::unsupported(edited("optr", {{"calibrate.group", 48}}), 128) ==
        "calibrate: a group of 48 channels does not divide the head dimension 128");
}

TEST_CASE("settings that change nothing by algebra say so") {
  const method::Recipe order = edited("oscar_ots", {{"key.order", "scale_rotate"}});
  CHECK(method::no_effect(order, "key.order", 128) ==
        "no effect by algebra: a rotation keeps the L2 norm");
  CHECK(method::notes(order, 128) ==
        std::vector<std::string>{"key.order: no effect by algebra: a rotation keeps the L2 norm"});
  CHECK(method::notes(method::preset("oscar_ots"), 128).empty());
  CHECK_FALSE(
      method::no_effect(edited("oscar_ots", {{"key.token_scale", "max_head"}}), "key.order", 128));
  CHECK(method::no_effect(method::preset("oscar_cov"), "key.bit_reversal", 128).has_value());
  CHECK(method::no_effect(method::preset("oscar_cov"), "key.covariance", 128).has_value());
  CHECK_FALSE(method::no_effect(method::preset("oscar_cov"), "value.covariance", 128));
  CHECK_FALSE(method::no_effect(method::preset("kivi"), "key.covariance", 128));
  CHECK_FALSE(method::no_effect(edited("oscar_cov", {{"group", 32}}), "key.bit_reversal", 128));
  CHECK_FALSE(method::no_effect(method::preset("kivi"), "key.bit_reversal", 128));
}

TEST_CASE("who needs calibration, who draws from the seed") {
  CHECK(method::needs_calibration(
      edited("quarot_windows", {{"key.codec.clip_source", "calibrated"}})));
  CHECK_FALSE(
      method::needs_calibration(edited("quarot", {{"key.codec.clip_source", "calibrated"}})));
  CHECK(method::needs_calibration(edited("kivi", {{"value.rotate", "covariance"}})));
  CHECK(method::uses_seed(edited("kivi", {{"key.rotate", "random_orthogonal"}})));
  CHECK_FALSE(method::uses_seed(edited("bf16", {{"key.rotate", "random_orthogonal"}})));
}

TEST_CASE("a rotation may come from a file") {
  const method::Recipe recipe = edited("quarot", {{"key.rotate", "file:some/rotation.h5"}});
  CHECK(method::rotation_file(recipe, "key") == "some/rotation.h5");
  CHECK_FALSE(method::rotation_file(recipe, "value"));
  CHECK_FALSE(method::needs_calibration(recipe));
  CHECK(method::canonical(recipe, 128).at("key").at("rotate") == "file:some/rotation.h5");
}

TEST_CASE("D07, D09, D51, D53: grid, levels, scale scope and clips are in the record") {
  const json ots = method::canonical(method::preset("oscar_ots"), 128);
  CHECK(ots.at("key").at("codec").at("grid") == "rounded_zero");
  CHECK(ots.at("key").at("token_scale") == "l2_heads");
  const json kivi = method::canonical(method::preset("kivi"), 128);
  CHECK(kivi.at("key").at("codec").at("grid") == "float_zero");
  CHECK(kivi.at("key").at("codec").at("zero") == "value");
  const json symmetric = method::canonical(method::preset("int2_naive_symmetric"), 128);
  CHECK(symmetric.at("key").at("codec").at("grid") == "symmetric");
  const json oscar = method::canonical(method::preset("oscar_cov"), 128);
  CHECK(oscar.at("key").at("codec").at("clip") == 0.96);
  CHECK(oscar.at("value").at("codec").at("clip") == 0.92);
}

TEST_CASE("switches of single codes are refused where they cannot be had") {
  const auto why = [](const std::string& id, const std::map<std::string, nlohmann::json>& edits,
                      int64_t head_dim = 128) {
    method::Recipe recipe = method::preset(id);
    for (const auto& [key, value] : edits) {
      REQUIRE_FALSE(method::apply_edit(recipe, key, value));
    }
    return method::unsupported(recipe, head_dim).value_or("");
  };
  CHECK(get_int(method::preset("saw_int4").settings, "key.rotate_block") == 16);
  CHECK(why("saw_int4", {{"key.rotate_block", 0}}).empty());
  CHECK(why("saw_int4", {}, 24) ==
        "key: a rotate_block of 16 channels does not divide the head dimension 24");
  CHECK(why("saw_int4", {{"key.rotate_block", 24}}) ==
        "key: a rotate_block of 24 channels does not divide the head dimension 128");
  CHECK(why("saw_int4", {{"key.rotate_block", 16}, {"key.rotate_heads", 2}})
            .starts_with("key: rotate_block is a part of a head"));
  CHECK(why("saw_int4", {{"key.rotate_block", 16}, {"group", 16}}, 9 * 16).empty());

  CHECK(why("oscar_ots", {{"key.mix_tokens", 128}}).empty());
  CHECK(why("oscar_ots", {{"key.mix_tokens", 96}}) == "key: mix_tokens 96 is no power of two");
  CHECK(
      why("oscar_ots", {{"key.mix_tokens", 256}}).starts_with("window.recent 128 is no multiple"));
  CHECK(why("ott", {{"key.mix_tokens", 32}}).starts_with("key: mix_tokens and protect"));
  CHECK(why("kvquant_nuq2", {{"key.mix_tokens", 32}}).starts_with("key: mix_tokens mixes blocks"));
  CHECK(why("kivi", {{"value.mix_tokens", 32}}).starts_with("window.flush kivi quantizes values"));
  CHECK(why("streaming_int4", {{"key.mix_tokens", 32}}).starts_with("evict needs axis token"));
  method::Recipe mixed = method::preset("oscar_ots");
  REQUIRE_FALSE(method::apply_edit(mixed, "key.mix_tokens", 128));
  CHECK(method::flush_group(mixed) == 128);

  CHECK(why("quarot", {{"key.codec.row", "token"}, {"key.codec.group", 100}}).empty());
  CHECK(why("quarot_windows", {{"key.codec.row", "token"}, {"key.codec.clip_source", "calibrated"}})
            .starts_with("key: clip_source calibrated has a threshold for each KV head"));
  CHECK(why("oscar_cov", {{"key.composition", "h_r_pbr"}}, 96)
            .starts_with("key: bit reversal needs a head dimension that is a power of two"));
  // A switch at its default is not part of what a recipe resolves to.
  const nlohmann::json plain = method::canonical(method::preset("oscar_cov"), 128);
  for (const char* key : {"composition", "mix_tokens", "rotate_block"}) {
    CHECK_FALSE(plain.at("key").contains(key));
  }
  CHECK_FALSE(plain.at("key").at("codec").contains("row"));
}
