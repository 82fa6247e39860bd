// TurboQuant+: norms, a rotation, Lloyd–Max centroids, and the sign sketch of the residual.
#include <fmt/format.h>

#include <cmath>

#include "peers/parts.h"
#include "quant/packing.h"
#include "transform/transform.h"

namespace peers {
namespace {

using namespace kvlab;

constexpr double kRelative = 1e-9;

/// Centroids of coordinates of a unit vector as levels of unit variance.
std::string levels_text(const at::Tensor& centroids, int64_t dim) {
  const at::Tensor unit = centroids.to(at::kDouble) * std::sqrt(static_cast<double>(dim));
  std::string text;
  for (int64_t i = 0; i < unit.size(0); ++i) {
    text += fmt::format("{}{:.17g}", i == 0 ? "" : ", ", unit[i].item<double>());
  }
  return text;
}

/// Indices of a width in whole bytes, the first in the top bits.
at::Tensor top_first(const at::Tensor& codes, int64_t bits) {
  const int64_t each = 8 / bits;
  const at::Tensor shifts = (each - 1 - at::arange(each, at::kLong)) * bits;
  return codes.reshape({-1, each}).bitwise_left_shift(shifts).sum(-1);
}

/// A codec's stored numbers in float64 on x [n, d] float64, in the codec's own (rotated) space.
struct Coded {
  quant::Encoded encoded;
  at::Tensor values;
};

Coded code(const Parts& parts, const at::Tensor& x, const at::Tensor& sketch) {
  const auto codec = quant::make_codec(parts.codec("key"), x.size(1));
  Coded coded;
  coded.encoded = codec->encode(x.unsqueeze(0), sketch);
  coded.values = codec->decode(coded.encoded)[0];
  return coded;
}

Parts parts_of(const Case& vector, const std::string& kind) {
  Parts parts;
  parts.set("key.codec.kind", kind)
      .set("key.codec.group", vector.integer("group"))
      .set("key.codec.norm_correction", vector.integer("norm_correction") == 1)
      .set("key.codec.norm_params", "fp64");
  return parts;
}

void check_mse(const Case& vector, Findings& findings) {
  const at::Tensor x = vector.tensor("input").to(at::kDouble);
  const at::Tensor rotation = vector.tensor("rotation");
  const int64_t bits = vector.integer("bits");
  Parts parts = parts_of(vector, "codebook");
  parts.set("key.codec.bits", bits)
      .set("key.codec.levels", levels_text(vector.tensor("centroids"), x.size(1)));
  const Coded ours = code(parts, x.matmul(rotation.t()), {});
  const at::Tensor codes = vector.tensor("codes");
  findings.equal("codes", quant::unpack(ours.encoded.codes, bits)[0].to(at::kLong), codes);
  findings.near("norms", ours.encoded.params.flatten(), vector.tensor("norms"), kRelative);
  findings.near("values", ours.values.matmul(rotation), vector.tensor("dequant"), kRelative);
  if (vector.has("packed")) {
    findings.equal("bytes",
                   top_first(quant::unpack(ours.encoded.codes, bits)[0].to(at::kLong), bits),
                   vector.tensor("packed"));
  }
  // What a recipe's own levels are: the published centroids have three digits at two bits.
  parts.set("key.codec.levels", "gaussian");
  const Coded exact = code(parts, x.matmul(rotation.t()), {});
  findings.equal("codes of exact levels", quant::unpack(exact.encoded.codes, bits)[0].to(at::kLong),
                 codes, 5e-3);
}

/// Sign bits as −1 and 1.
at::Tensor signs_of(const Coded& coded) {
  return quant::unpack(coded.encoded.more.at(0), 1)[0].to(at::kLong) * 2 - 1;
}

/// The sketch works in the codec's space: S·Rᵀ takes a rotated residual to what S makes of the
/// residual itself.
void check_sketch(const Case& vector, Findings& findings, const Coded& ours,
                  const at::Tensor& rotation) {
  findings.equal("signs", signs_of(ours), vector.tensor("qjl_signs"));
  findings.near("residual norms", ours.encoded.more.at(1).flatten(),
                vector.tensor("residual_norms"), kRelative);
  findings.near("values", ours.values.matmul(rotation), vector.tensor("dequant"), kRelative);
}

void check_prod(const Case& vector, Findings& findings) {
  const at::Tensor x = vector.tensor("input").to(at::kDouble);
  const at::Tensor rotation = vector.tensor("rotation");
  const int64_t bits = vector.integer("bits");
  Parts parts = parts_of(vector, "sketched_codebook");
  parts.set("key.codec.bits", bits)
      .set("key.codec.levels", levels_text(vector.tensor("centroids"), x.size(1)));
  const at::Tensor sketch = vector.tensor("qjl_matrix").matmul(rotation.t()).unsqueeze(0);
  const Coded ours = code(parts, x.matmul(rotation.t()), sketch);
  findings.equal("codes", quant::unpack(ours.encoded.codes, bits - 1)[0].to(at::kLong),
                 vector.tensor("codes"));
  findings.near("norms", ours.encoded.params.flatten(), vector.tensor("norms"), kRelative);
  check_sketch(vector, findings, ours, rotation);
}

/// The first channels and the others with a rotation, a norm and a width of their own.
void check_split(const Case& vector, Findings& findings) {
  const at::Tensor x = vector.tensor("input").to(at::kDouble);
  const int64_t high = vector.integer("n_outlier");
  const int64_t low = x.size(1) - high;
  const at::Tensor rotation =
      at::block_diag({vector.tensor("rotation_outlier"), vector.tensor("rotation_normal")});
  Parts parts = parts_of(vector, "sketched_codebook");
  parts.set("key.codec.bits", vector.integer("low_bits"))
      .set("key.codec.high_bits", vector.integer("high_bits"))
      .set("key.codec.high_share", static_cast<double>(high) / static_cast<double>(x.size(1)));
  parts.set("key.codec.levels", levels_text(vector.tensor("centroids_normal"), low))
      .set("key.codec.high_levels", levels_text(vector.tensor("centroids_outlier"), high));
  const at::Tensor sketch = vector.tensor("qjl_matrix").matmul(rotation.t()).unsqueeze(0);
  const Coded ours = code(parts, x.matmul(rotation.t()), sketch);
  const int64_t high_bits = vector.integer("high_bits") - 1;
  const int64_t low_bits = vector.integer("low_bits") - 1;
  const int64_t bytes = high * high_bits / 8;
  const at::Tensor codes = ours.encoded.codes[0];
  const auto part = [&](int64_t first, int64_t count, int64_t bits) {
    return quant::unpack(codes.narrow(1, first, count).contiguous(), bits).to(at::kLong);
  };
  findings.equal("codes of the first channels", part(0, bytes, high_bits),
                 vector.tensor("codes_outlier"));
  findings.equal("codes of the others", part(bytes, codes.size(1) - bytes, low_bits),
                 vector.tensor("codes_normal"));
  const at::Tensor norms = ours.encoded.params[0].squeeze(-1);
  findings.near("norms of the first channels", norms.select(1, 0), vector.tensor("norms_outlier"),
                kRelative);
  findings.near("norms of the others", norms.select(1, 1), vector.tensor("norms_normal"),
                kRelative);
  check_sketch(vector, findings, ours, rotation);
}

/// Signs, a Hadamard matrix, signs.
void check_signed_hadamard(const Case& vector, Findings& findings) {
  const at::Tensor x = vector.tensor("input").to(at::kDouble);
  const at::Tensor matrix = vector.tensor("signs1").unsqueeze(1) * transform::hadamard(x.size(1)) *
                            vector.tensor("signs2").unsqueeze(0);
  findings.near("rotated", x.matmul(matrix), vector.tensor("rotated"), kRelative);
  findings.near("rotated back", vector.tensor("rotated").matmul(matrix.t()),
                vector.tensor("dequant"), kRelative);
}

}  // namespace

void check_turboquant(const Case& vector, Findings& findings) {
  const std::string kind = vector.text("kind");
  if (kind == "mse") return check_mse(vector, findings);
  if (kind == "prod") return check_prod(vector, findings);
  if (kind == "outlier") return check_split(vector, findings);
  if (kind == "wht") return check_signed_hadamard(vector, findings);
  findings.that(false, "kind '" + kind + "' is not known");
}

}  // namespace peers
