// Kitty: keys per channel with promoted channels, values per token, a least range.
#include "cache/windows.h"
#include "peers/parts.h"
#include "quant/packing.h"

namespace peers {
namespace {

using namespace kvlab;
using cache::Windows;

/// The codec of one side. `page`: tokens over which channels are ranked.
void set_codec(const Case& vector, Parts& parts, const std::string& side, bool boosted,
               int64_t page) {
  parts.set(side + ".codec.bits", vector.integer("bits"))
      .set(side + ".codec.group", vector.integer("group"))
      .set(side + ".codec.least_range", vector.real("eps"))
      .set(side + ".codec.params", vector.text("scale_dtype"))
      .set(side + ".codec.arithmetic", vector.text("dtype"))
      .set(side + ".codec.decode_arithmetic", vector.text("dequant_dtype"));
  if (!boosted) return;
  parts.set(side + ".codec.kind", "boosted")
      .set(side + ".codec.boost", vector.real("promote_ratio"))
      .set(side + ".codec.boost_bits", vector.integer("promote_bits"))
      .set(side + ".codec.boost_tokens", page);
}

void check_primitive(const Case& vector, Findings& findings) {
  const at::Tensor x = vector.only("input");
  // One call ranks the channels of all its tokens.
  const bool boosted = vector.has("promote_mask");
  Parts parts;
  parts.set("key.codec.axis", shared_axis(vector.text("axis")));
  set_codec(vector, parts, "key", boosted, x.size(1));
  Quantized ours = quantize(parts.codec("key"), x);
  if (boosted) {
    const at::Tensor channels = ours.encoded.more.at(1).squeeze(1).to(at::kLong);
    const at::Tensor mask = at::zeros({x.size(0), x.size(2)}, at::kLong).scatter(1, channels, 1);
    findings.equal("promoted channels", mask, vector.only("promote_mask"));
    const int64_t extra = vector.integer("promote_bits") - vector.integer("bits");
    const at::Tensor plane = quant::unpack(ours.encoded.more.at(0), extra)
                                 .to(at::kLong)
                                 .reshape({x.size(0), x.size(1), channels.size(1)});
    const at::Tensor index = channels.unsqueeze(1).expand({-1, x.size(1), -1});
    ours.codes = ours.codes + at::zeros_like(ours.codes).scatter(2, index, plane) *
                                  (int64_t{1} << vector.integer("bits"));
  }
  findings.equal("scale", ours.scale, vector.only("scale"));
  findings.equal("zero", ours.zero, vector.only("min"));
  findings.equal("codes", ours.codes, vector.only("codes"));
  findings.equal("values", ours.values, vector.only("dequant"));
}

void check_cache(const Case& vector, Findings& findings) {
  const int64_t buffer = vector.integer("buffer");
  Parts parts;
  parts.set("key.codec.axis", "channel")
      .set("value.codec.axis", "token")
      .set("window.sink", vector.integer("sink"))
      .set("window.recent", buffer)
      .set("window.flush", "kivi");
  set_codec(vector, parts, "key", true, buffer);
  set_codec(vector, parts, "value", false, buffer);

  const auto compare = [&](const std::string& name, const std::string& side, Windows::Side which,
                           const std::string& suffix) {
    const at::Tensor read = vector.only(name + suffix);
    const at::Tensor x = vector.only(name).narrow(1, 0, read.size(1));
    const Windows windows(parts.recipe().settings, read.size(1));
    const int64_t begin = windows.begin();
    const int64_t end = windows.boundary(which, read.size(1));
    at::Tensor ours = x.clone();
    const at::Tensor history = x.narrow(1, begin, end - begin);
    ours.narrow(1, begin, end - begin).copy_(quantize(parts.codec(side), history).values);
    findings.equal(name + suffix, ours, read);
    findings.that(end > begin && end < read.size(1), name + suffix + " has both parts");
  };
  compare("K", "key", Windows::Side::key, "_dequant");
  compare("V", "value", Windows::Side::value, "_dequant");
  if (!vector.has("K_dequant_after_decode")) return;
  compare("K", "key", Windows::Side::key, "_dequant_after_decode");
  compare("V", "value", Windows::Side::value, "_dequant_after_decode");
}

}  // namespace

void check_kitty(const Case& vector, Findings& findings) {
  if (vector.text("kind") == "primitive") {
    check_primitive(vector, findings);
  } else {
    check_cache(vector, findings);
  }
}

}  // namespace peers
