// QuaRot's activation quantizer on keys (after a Hadamard rotation) and values.
#include "peers/parts.h"
#include "quant/token_rows.h"
#include "transform/transform.h"

namespace peers {

void check_quarot(const Case& vector, Findings& findings) {
  const bool key = vector.text("tensor") == "K";
  // Of all heads together, or of each head: then rows are heads · d or d wide.
  const bool joined = vector.integer("k_groupsize") < 0;
  const std::string type = vector.text("dtype");
  at::Tensor rows;  // [heads, T, d]
  if (key) {
    const at::Tensor hadamard = kvlab::transform::hadamard(vector.tensor("K").size(3));
    for (const std::string name : {"K", "Q"}) {
      const at::Tensor stored = vector.tensor(name + "_rot");
      const at::Tensor ours = rounded(vector.tensor(name).to(at::kDouble).matmul(hadamard), type);
      findings.close(name + " rotated", ours, stored, ulp(stored.abs().amax(-1, true), type, 2));
    }
    rows = vector.only("K_rot");
  } else {
    rows = vector.tensor("input");
  }

  Parts parts;
  // Statistics that hold zero are float32, as a float32 zero enters them; else all is in the type
  // of the model.
  const bool holds_zero = key || joined;
  parts.set("key.codec.bits", vector.integer("bits"))
      .set("key.codec.axis", shared_axis(vector.text("axis")))
      .set("key.codec.group", vector.integer("group"))
      .set("key.codec.grid", vector.text("grid"))
      .set("key.codec.clip", vector.real("clip_ratio"))
      .set("key.codec.clip_kind", "range")
      .set("key.codec.hold_zero", holds_zero)
      .set("key.codec.zero_group", "unit_range")
      .set("key.codec.params", vector.text("scale_dtype"))
      .set("key.codec.arithmetic", vector.text("scale_dtype"))
      .set("key.codec.decode_arithmetic", vector.text("dequant_dtype"));
  if (key && joined) parts.set("key.codec.row", "token");
  Quantized ours = quantize(parts.codec("key"), rows);
  if (key && joined) {
    rows = kvlab::quant::side_by_side(rows);
    ours.values = kvlab::quant::side_by_side(ours.values);
  }

  const auto as_rows = [&](const std::string& name) {
    at::Tensor x = vector.tensor(name);
    if (key && joined && x.dim() == 4) x = x[0].transpose(0, 1).flatten(1).unsqueeze(0);
    return x.dim() == 4 ? x[0] : x;
  };
  const at::Tensor scale = as_rows("scale");
  // A constant group divides by zero there: NaN. It has no range here and decodes to its value.
  const at::Tensor group = scale.ne(0);
  const at::Tensor element = spread(group, rows);
  findings.equal("scale", ours.scale * group, scale);
  const bool symmetric = vector.text("grid") == "symmetric";
  const int64_t shift = symmetric ? (1 << (vector.integer("bits") - 1)) - 1 : 0;
  const at::Tensor zero = as_rows("zero");
  findings.equal("zero", (symmetric ? at::zeros_like(scale) : ours.zero).masked_select(group),
                 zero.masked_select(group));
  findings.equal("codes", (ours.codes - shift).masked_select(element),
                 as_rows("codes").masked_select(element));
  findings.equal("values", ours.values.masked_select(element),
                 as_rows("dequant").masked_select(element));
  findings.that(ours.values.isfinite().all().item<bool>(), "decoded values are finite");
}

}  // namespace peers
