// OSCAR's runtime: clipped rows, −lo/s stored, codes rounded half up; and its torch references.
#include "peers/parts.h"
#include "quant/uniform.h"

namespace peers {
namespace {

constexpr double kLeastRange = 1e-8;  // max(hi − lo, 1e-8) in its code

/// [T, H, …] to [H, T, …].
at::Tensor by_head(const at::Tensor& x) { return x.transpose(0, 1).contiguous(); }

/// Byte i of a head holds channels i, i + d/4, i + d/2 and i + 3d/4, low bits first.
at::Tensor quarters(const at::Tensor& codes) {
  const int64_t d = codes.size(-1);
  at::Tensor bytes = at::zeros({codes.size(0), codes.size(1), d / 4}, at::kLong);
  for (int64_t i = 0; i < 4; ++i)
    bytes += codes.narrow(-1, i * d / 4, d / 4) * (int64_t{1} << (2 * i));
  return bytes;
}

Parts parts_of(const Case& vector, const std::string& variant, double clip) {
  Parts parts;
  parts.set("key.codec.bits", vector.integer("bits")).set("key.codec.clip", clip);
  if (variant == "lloyd_max") {
    // Standardized rows against Lloyd–Max thresholds, held as an evenly spaced equivalent.
    return parts.set("key.codec.kind", "codebook")
        .set("key.codec.group", vector.integer("group"))
        .set("key.codec.normalize", "mean_deviation")
        .set("key.codec.levels", "-1.5095583, -0.4525817, 0.4525817, 1.5095583")
        .set("key.codec.ratio", 1.16)
        .set("key.codec.norm_params", vector.text("scale_dtype"));
  }
  return parts.set("key.codec.axis", shared_axis(vector.text("axis")))
      .set("key.codec.group", vector.integer("group"))
      .set("key.codec.grid", vector.text("grid"))
      .set("key.codec.zero", "code_offset")
      .set("key.codec.rounding", "half_up")
      .set("key.codec.least_range", kLeastRange)
      .set("key.codec.codes_from", "exact")
      .set("key.codec.clip_search", variant == "fused" ? "bisect" : "sort")
      .set("key.codec.params", vector.text("scale_dtype"));
}

at::Tensor threshold_of(const Parts& parts, const at::Tensor& x) {
  kvlab::Settings codec = parts.codec("key");
  codec["kind"] = "uniform";
  return kvlab::quant::clip_threshold(x, kvlab::quant::UniformSpec::from(codec, x.size(2)), {})
      .squeeze(-1);
}

/// Elements whose place on the grid is within `margin` of a rounding boundary.
at::Tensor at_boundary(const at::Tensor& x, const Quantized& q, double margin) {
  const at::Tensor place = x / spread(q.scale, x) + spread(q.zero, x);
  return (place - place.floor() - 0.5).abs().lt(margin);
}

void check_runtime(const Case& vector, Findings& findings, const std::string& name, double clip) {
  const std::string variant = vector.text("variant");
  const std::string type = vector.text("dtype");
  const at::Tensor input = by_head(vector.tensor(name));
  const at::Tensor rotation = vector.tensor("R_" + name);
  const at::Tensor exact = input.to(at::kDouble).matmul(rotation.to(at::kDouble));
  // The fused kernel never rounds rotated keys.
  const bool unrounded = vector.has(name + "_rot_fp32");
  const at::Tensor x = by_head(vector.tensor(name + (unrounded ? "_rot_fp32" : "_rot")));
  if (unrounded) {
    findings.near(name + " rotated", exact, x, 1e-6);
  } else {
    findings.equal(name + " rotated", rounded(exact, type), x, 2e-4);
    findings.close(name + " rotated, one step", rounded(exact, type), x,
                   ulp(x, type, 1) + 1e-6 * x.abs().max());
  }

  const Parts parts = parts_of(vector, variant, clip);
  const Quantized ours = quantize(parts.codec("key"), x);
  if (vector.has(name + "_threshold")) {
    const at::Tensor stored = by_head(vector.tensor(name + "_threshold"));
    findings.close(name + " threshold", threshold_of(parts, x), stored,
                   stored.abs() * (variant == "fused" ? 1e-6 : 0.0));
  }
  const at::Tensor scale = by_head(vector.tensor(name + "_scale"));
  const at::Tensor zero = by_head(vector.tensor(name + "_zero"));
  const at::Tensor codes = by_head(vector.tensor(name + "_codes"));
  const at::Tensor decoded = by_head(vector.tensor(name + "_dequant_rot"));
  if (variant == "sort" || variant == "noclip") {
    findings.equal(name + " scale", ours.scale, scale);
    findings.equal(name + " zero", ours.zero, zero);
    findings.equal(name + " codes", ours.codes, codes);
    findings.equal(name + " values", ours.values, decoded);
  } else {
    const double relative = variant == "fused" ? 1e-6 : 1e-5;
    findings.close(name + " scale", ours.scale, scale, scale.abs() * relative);
    findings.close(name + " zero", ours.zero, zero, zero.abs().clamp_min(1.0) * relative);
    const at::Tensor sure =
        variant == "fused" ? at_boundary(x, ours, 1e-4).logical_not() : at::ones_like(x, at::kBool);
    findings.equal(name + " codes", ours.codes * sure, codes * sure);
    findings.near(name + " values", ours.values * sure, decoded * sure, 2e-5);
  }
  findings.equal(name + " bytes", quarters(codes), by_head(vector.tensor(name + "_packed")));
  findings.near(name + " values rotated back",
                decoded.to(at::kDouble).matmul(rotation.to(at::kDouble).t()),
                by_head(vector.tensor(name + "_dequant")), 1e-6);
}

/// References in torch: float32 on rotated input.
void check_reference(const Case& vector, Findings& findings) {
  const Parts parts = parts_of(vector, "sort", vector.real("clip_ratio"));
  const at::Tensor x = by_head(vector.tensor("input"));
  const Quantized ours = quantize(parts.codec("key"), x);
  const auto stored = [&](const char* name) { return by_head(vector.tensor(name)); };
  findings.equal("values", ours.values, stored("dequant"));
  if (!vector.has("codes")) return;
  findings.equal("scale", ours.scale, stored("scale"));
  findings.equal("zero", ours.zero, stored("zero"));
  findings.equal("codes", ours.codes, stored("codes"));
  if (vector.has("threshold")) {
    findings.equal("threshold", threshold_of(parts, x), stored("threshold"));
  }
}

}  // namespace

void check_oscar_runtime(const Case& vector, Findings& findings) {
  if (vector.text("kind") != "runtime") {
    check_reference(vector, findings);
    return;
  }
  check_runtime(vector, findings, "K", vector.real("clip_ratio"));
  check_runtime(vector, findings, "V", vector.real("clip_ratio_v"));
}

}  // namespace peers
