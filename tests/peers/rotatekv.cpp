// RotateKV: channels reordered over all heads, one Hadamard matrix over several heads, pivot tokens
// kept exact.
#include "peers/parts.h"
#include "transform/head_hadamard.h"
#include "transform/reorder.h"

namespace peers {
namespace {

using namespace kvlab;

/// Tokens that are not pivots.
at::Tensor others(const at::Tensor& pivots, int64_t tokens) {
  at::Tensor mask = at::ones({tokens}, at::kBool);
  if (pivots.numel() > 0) mask.index_fill_(0, pivots, false);
  return mask.nonzero().squeeze(1);
}

Settings codec_of(const Case& vector) {
  Parts parts;
  parts.set("key.codec.bits", vector.integer("bits"))
      .set("key.codec.axis", shared_axis(vector.text("axis")))
      .set("key.codec.group", vector.integer("group"))
      .set("key.codec.grid", vector.text("grid"))
      .set("key.codec.clip", vector.real("clip_ratio"))
      .set("key.codec.clip_kind", "range")
      .set("key.codec.params", vector.text("scale_dtype"))
      .set("key.codec.arithmetic", vector.text("dtype"))
      .set("key.codec.decode_arithmetic", vector.text("dequant_dtype"));
  return parts.codec("key");
}

/// The tensor [H, T, d] with all but pivots as read from codes.
at::Tensor compare_codes(const Case& vector, Findings& findings, const std::string& name,
                         const at::Tensor& x, const at::Tensor& tokens) {
  const at::Tensor history = x.index_select(1, tokens);
  const Quantized ours = quantize(codec_of(vector), history);
  const at::Tensor scale = vector.tensor(name + "_scale");
  const at::Tensor group = scale.ne(0);  // a group of one value is NaN there
  const at::Tensor element = spread(group, history);
  findings.equal(name + " scale", ours.scale * group, scale);
  findings.equal(name + " zero", ours.zero.masked_select(group),
                 vector.tensor(name + "_zero").masked_select(group));
  findings.equal(name + " codes", ours.codes.masked_select(element),
                 vector.tensor(name + "_codes").masked_select(element));
  return x.index_copy(1, tokens, ours.values);
}

}  // namespace

void check_rotatekv(const Case& vector, Findings& findings) {
  const std::string type = vector.text("dtype");
  const at::Tensor keys = vector.tensor("K");
  const at::Tensor order = vector.tensor("reorder_index");
  const int64_t heads = transform::heads_together(keys.size(1), vector.integer("head_group"));
  findings.that(heads == vector.integer("head_group"), "heads that are rotated together");

  // Sums taken in the model's type may swap channels whose exact sums are nearly equal.
  const at::Tensor sums = transform::reorder(keys, order).to(at::kDouble).sum(2).flatten();
  findings.near("channels ascend in their sums", sums, std::get<0>(sums.sort()),
                type == "fp32" ? 1e-6 : 2e-2);
  if (type == "fp32") findings.equal("order", transform::channel_order(keys), order);

  const at::Tensor rotated =
      transform::rotate_heads(transform::reorder(keys, order).to(at::kDouble), heads)[0];
  const at::Tensor stored = vector.only("K_rot");
  findings.close("K_rot", rounded(rotated, type), stored, ulp(stored.abs().amax(), type, 2));

  const at::Tensor tokens = others(vector.tensor("pivot_tokens"), keys.size(2));
  findings.that(keys.size(2) - tokens.size(0) == vector.integer("pivots"), "pivot tokens");
  const at::Tensor read = compare_codes(vector, findings, "K", stored, tokens);
  findings.equal("K as read, rotated", read, vector.only("K_dequant_rot"));
  const at::Tensor back = transform::undo_reorder(
      transform::undo_rotate_heads(read.unsqueeze(0).to(at::kDouble), heads), order)[0];
  const at::Tensor stored_back = vector.only("K_dequant");
  findings.close("K as read", rounded(back, type), stored_back,
                 ulp(stored_back.abs().amax(), type, 2));
  findings.equal("V as read", compare_codes(vector, findings, "V", vector.only("V"), tokens),
                 vector.only("V_dequant"));
}

}  // namespace peers
