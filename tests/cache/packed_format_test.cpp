#include "cache/packed_format.h"

#include "catch.h"
#include "metrics/cases.h"

using namespace kvlab;
using cache::packed_format;
using cache::packed_refusal;
using cases::recipe;

namespace {

std::string refusal(const std::string& preset, const Settings& edits, int64_t d = 128,
                    DType dtype = DType::bf16) {
  return packed_refusal(recipe(preset, edits).settings, d, dtype).value_or("");
}

std::string name(const std::string& preset, const Settings& edits = {}, int64_t d = 128) {
  return kernels::name_of(packed_format(recipe(preset, edits).settings, d, DType::bf16).format);
}

}  // namespace

TEST_CASE("presets in the words of the kernels", "[cache]") {
  CHECK(name("int2_naive") == "f1");
  CHECK(name("int2_naive", {}, 64) == "f1");
  CHECK(name("int2_naive_symmetric") == "k:token,g128,b2,none;v:token,g128,b2,none");
  CHECK(name("kivi") == "k:channel,g32,b2;v:token,g32,b2");
  CHECK(name("kivi_g128", {}, 64) == "k:channel,g128,b2;v:token,g64,b2");
  CHECK(name("oscar_ots") == "k:channel,g32,b2,offset;v:token,g32,b2,offset;norm:heads,f32");
  CHECK(name("kivi", {{"key.token_scale", "l2_head"}, {"key.token_scale_params", "fp16"}}) == "f2");
  CHECK(name("oscar_cov", {{"key.codec.zero", "code_offset"}, {"value.codec.params", "bf16"}}) ==
        "k:token,g128,b2,offset;v:token,g128,b2,bf16");
  const cache::PackedFormat plain = packed_format(recipe("bf16").settings, 256, DType::fp16);
  CHECK_FALSE(plain.quantized);
  CHECK(plain.format.window == kernels::Type::f16);
}

TEST_CASE("windows and clips in the words of the kernels", "[cache]") {
  const Settings settings = recipe("oscar_cov").settings;
  const kernels::WindowRule rule = packed_format(settings, 128, DType::bf16).rule;
  CHECK(rule == kernels::WindowRule{kernels::Flush::block, 64, 256, 1});
  const kernels::SideEncode key = cache::side_encode(recipe("oscar_cov").side("key"), 128);
  CHECK(key.clip == kernels::Clip::row);
  CHECK(key.clip_index == 122);  // int(0.96 · 128)
  CHECK(key.grid.half_up);
  const kernels::SideEncode group = cache::side_encode(
      recipe("oscar_cov", {{"group", 32}, {"key.codec.clip_scope", "group"}}).side("key"), 128);
  CHECK(group.clip == kernels::Clip::group);
  CHECK(group.clip_index == 30);
  const kernels::SideEncode range =
      cache::side_encode(recipe("quarot", {{"key.codec.clip", 0.5}}).side("key"), 128);
  CHECK(range.clip == kernels::Clip::none);
  CHECK(range.grid.range_ratio == 0.5f);
  CHECK(range.grid.integer_zero);
}

TEST_CASE("what the packed backends lack is named in a sentence", "[cache]") {
  CHECK(refusal("kivi", {}).empty());
  CHECK(refusal("kivi", {{"group", 16}}) ==
        "backends cpu and cuda: keys: groups of 16 have no kernel, of 32, 64 and 128 have");
  CHECK(refusal("kivi", {{"key.codec.bits", 3}}) ==
        "backends cpu and cuda: keys: 3 bits have no kernel, 2, 4 and 8 have");
  CHECK(refusal("kivi", {}, 80) ==
        "backends cpu and cuda: a head of 80 channels has no kernel, one of 64, 128 and 256 has");
  CHECK(refusal("bf16", {}, 80) ==
        "backends cpu and cuda: a head of 80 channels has no kernel, one of 64, 128 and 256 has");
  CHECK(refusal("kivi", {}, 128, DType::fp32) ==
        "backends cpu and cuda: float32 data have no kernel, windows hold 16 bits");
  CHECK(refusal("kivi", {{"value.codec.kind", "passthrough"}}) ==
        "backends cpu and cuda: passthrough values beside quantized keys have no kernel");
  CHECK(refusal("kivi", {{"key.codec.kind", "passthrough"}}) ==
        "backends cpu and cuda: passthrough keys beside quantized values have no kernel");
  CHECK(refusal("kcvt_base", {{"value.codec.axis", "channel"}}) ==
        "backends cpu and cuda: values: per-channel groups have no kernel");
  CHECK(refusal("kcvt_base", {{"value.token_scale", "l2_head"}}) ==
        "backends cpu and cuda: value.token_scale l2_head has no kernel, that of keys has");
  CHECK(refusal("kcvt_base", {{"value.center", "head_mean"}}) ==
        "backends cpu and cuda: value.center head_mean has no kernel, that of keys has");
  CHECK_THROWS_AS(packed_format(recipe("kivi", {{"group", 16}}).settings, 128, DType::bf16),
                  Unsupported);
  CHECK(cache::heads_refusal(32, 2) == std::nullopt);
  CHECK(cache::heads_refusal(34, 2) ==
        "backends cpu and cuda: 17 query heads a KV head have no kernel, at most 16 have");
}
