// KVQuant: signposts between calibrated or own ends, outliers apart; and its integer grids.
#include "peers/parts.h"
#include "quant/packing.h"
#include "quant/sparse_dense.h"

namespace peers {
namespace {

using namespace kvlab;

constexpr double kRelative = 1e-5;  // of the range

at::Tensor signposts(const Case& vector) { return std::get<0>(vector.tensor("lut").sort()); }

Parts sparse_parts(const Case& vector, const std::string& axis) {
  Parts parts;
  parts.set("key.codec.kind", "sparse_dense")
      .set("key.codec.bits", vector.integer("bits"))
      .set("key.codec.axis", axis)
      .set("key.codec.sparse", 1.0 - vector.real("sparsity_threshold"))
      .set("key.codec.params", vector.text("scale_dtype"));
  return parts;
}

/// Which elements were kept apart: int64 [n, d].
at::Tensor outliers(const quant::Encoded& encoded, int64_t d) {
  const at::Tensor counts = encoded.more.at(0)[0].to(at::kLong);
  const at::Tensor row = at::arange(counts.size(0), at::kLong).repeat_interleave(counts);
  at::Tensor mask = at::zeros({counts.size(0), d}, at::kLong);
  mask.index_put_({row, encoded.more.at(1).to(at::kLong)}, at::ones({}, at::kLong));
  return mask;
}

void compare_sparse(const Case& vector, Findings& findings, const Settings& codec,
                    const at::Tensor& shared, int64_t kept) {
  const at::Tensor input = vector.tensor("input");
  // The first tokens stay as they are: a sink of the window.
  const at::Tensor x = input.narrow(0, kept, input.size(0) - kept);
  const auto made = quant::make_codec(codec, x.size(1));
  const quant::Encoded encoded = made->encode(x.unsqueeze(0), shared);
  const at::Tensor mask = vector.tensor("outlier_mask");
  const at::Tensor range = x.amax() - x.amin();
  const at::Tensor stored = vector.tensor("dequant");
  findings.equal("outliers", outliers(encoded, x.size(1)), mask.narrow(0, kept, x.size(0)));
  findings.close("values", made->decode(encoded)[0], stored.narrow(0, kept, x.size(0)),
                 range * kRelative);
  findings.equal("first tokens", input.narrow(0, 0, kept), stored.narrow(0, 0, kept));
  findings.equal("first tokens are outliers", at::ones({kept, x.size(1)}), mask.narrow(0, 0, kept));
}

/// Σ of the squared distances to the nearest signpost.
double distortion(const at::Tensor& unit, const at::Tensor& posts) {
  return (unit.unsqueeze(-1) - posts).square().amin(-1).sum().item<double>();
}

void check_keys(const Case& vector, Findings& findings) {
  const at::Tensor calibration = vector.tensor("calibration").unsqueeze(0);
  const at::Tensor lower = vector.tensor("lower"), upper = vector.tensor("upper");
  const at::Tensor posts = signposts(vector);
  const Parts parts = sparse_parts(vector, shared_axis(vector.text("axis")));
  const int64_t d = lower.size(0);

  const at::Tensor learned = quant::learn_sparse_dense(parts.codec("key"), calibration, {})[0];
  const at::Tensor range = upper - lower;
  findings.close("lower ends", learned.narrow(0, 0, d), lower, range * kRelative);
  findings.close("upper ends", learned.narrow(0, d, d), upper, range * kRelative);
  // k-means ends where it starts it from; ours must be as good as theirs.
  const at::Tensor inner = calibration[0].le(upper).logical_and_(calibration[0].ge(lower));
  const at::Tensor unit =
      ((calibration[0] - (upper + lower) / 2) / (range / 2)).masked_select(inner).to(at::kDouble);
  const at::Tensor own = learned.narrow(0, 2 * d, posts.size(0)).to(at::kDouble);
  findings.that(distortion(unit, own) <= 1.001 * distortion(unit, posts.to(at::kDouble)),
                "signposts are as good as the stored ones");

  const at::Tensor shared = at::cat({lower, upper, posts}).unsqueeze(0);
  compare_sparse(vector, findings, parts.codec("key"), shared,
                 std::max<int64_t>(0, vector.integer("first_few_fp16")));
}

void check_integer(const Case& vector, Findings& findings) {
  Parts parts;
  parts.set("key.codec.bits", vector.integer("bits"))
      .set("key.codec.axis", shared_axis(vector.text("axis")))
      .set("key.codec.group", vector.integer("group"))
      .set("key.codec.grid", vector.text("grid"))
      .set("key.codec.params", vector.text("scale_dtype"));
  const at::Tensor x = vector.tensor("input");
  const Quantized ours = quantize(parts.codec("key"), x.unsqueeze(0));
  findings.close("values", ours.values[0], vector.tensor("dequant"),
                 (x.amax() - x.amin()) * kRelative);
}

}  // namespace

void check_kvquant(const Case& vector, Findings& findings) {
  const std::string kind = vector.text("kind");
  if (kind == "k_nuq") return check_keys(vector, findings);
  if (kind == "k_int" || kind == "v_int") return check_integer(vector, findings);
  if (kind == "v_nuq") {
    const Parts parts = sparse_parts(vector, shared_axis(vector.text("axis")));
    return compare_sparse(vector, findings, parts.codec("key"), signposts(vector).unsqueeze(0), 0);
  }
  findings.that(false, "kind '" + kind + "' is not known");
}

}  // namespace peers
