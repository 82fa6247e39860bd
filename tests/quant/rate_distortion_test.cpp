// Distance to the limit: whatever the codec, a normal source of variance 1 takes at least
// ½·log2(1/D) bits a value for a mean squared error of D (Shannon 1959). What is held beyond that
// is wasted; less would be a miscounted byte or an error taken of the wrong tensor.
#include <cmath>
#include <set>

#include "catch.h"
#include "method/schema.h"
#include "quant/codec.h"
#include "quant/parts.h"
#include "quant/plain_codec.h"

using namespace kvlab;

namespace {

constexpr int64_t kHeadDim = 128;

struct Point {
  double held = 0.0;    // bits a value: codes, parameters and what else belongs to the values
  double needed = 0.0;  // ½·log2(1/D)
  double wasted() const { return held - needed; }
};

double needed_bits(double error) { return 0.5 * std::log2(1.0 / error); }

at::Tensor prepared(const Settings& codec) {
  if (quant::learns_codebook(codec)) {
    return quant::learn_codebook(codec, plain::gaussian({1, 1024, kHeadDim}, 41), {}, {});
  }
  if (get_text(codec, "kind") != "sketched_codebook") return {};
  return std::get<0>(at::linalg_qr(plain::gaussian({kHeadDim, kHeadDim}, 42).to(at::kDouble)))
      .unsqueeze(0);
}

Point on_normals(const std::string& kind, const Settings& changes) {
  Settings codec = below(method::default_settings(), "key.codec.");
  codec["kind"] = kind;
  for (const auto& [key, value] : changes) codec[key] = value;
  const at::Tensor x = plain::gaussian({1, 2048, kHeadDim}, 40);
  const auto made = quant::make_codec(codec, kHeadDim);
  const quant::Encoded encoded = made->encode(x, prepared(codec));
  const double error = (made->decode(encoded) - x).to(at::kDouble).square().mean().item<double>();
  const double bytes = static_cast<double>(encoded.code_bytes() + encoded.param_bytes());
  return {8.0 * bytes / static_cast<double>(x.numel()), needed_bits(error)};
}

}  // namespace

TEST_CASE("no codec beats the rate-distortion bound of a normal source", "[rate_distortion]") {
  struct Case {
    std::string kind;
    Settings changes;
  };
  const std::vector<Case> cases = {
      {"uniform", {}},
      {"uniform", {{"bits", 1}}},
      {"uniform", {{"bits", 4}}},
      {"uniform", {{"bits", 8}}},
      {"uniform", {{"grid", "rounded_zero"}}},
      {"uniform", {{"grid", "symmetric"}}},
      {"uniform", {{"axis", "channel"}, {"group", 32}}},
      {"uniform", {{"group", 32}}},
      {"uniform", {{"clip", 0.92}}},
      {"boosted", {{"axis", "channel"}, {"group", 32}, {"boost_tokens", 32}, {"boost", 0.25}}},
      {"codebook", {{"bits", 1}}},
      {"codebook", {{"bits", 2}}},
      {"codebook", {{"bits", 4}}},
      {"codebook", {{"bits", 2}, {"norm_correction", true}}},
      {"codebook", {{"bits", 2}, {"normalize", "mean_deviation"}}},
      {"sketched_codebook", {{"bits", 2}}},
      {"vector_codebook", {{"width", 2}, {"entries", 16}, {"codebook_stride", 1}}},
      {"vector_codebook", {{"width", 4}, {"entries", 256}, {"codebook_stride", 1}}},
      {"sparse_dense", {{"axis", "channel"}}},
      {"sparse_dense", {{"axis", "token"}}},
      {"float", {{"format", "e4m3"}, {"scale", "none"}}},
      {"float", {{"format", "e2m1"}, {"scale", "e8m0"}, {"group", 32}}},
      {"float", {{"format", "e2m1"}, {"scale", "e4m3"}, {"group", 16}}},
  };
  std::set<std::string> tried;
  for (const Case& c : cases) {
    tried.insert(c.kind);
    const Point point = on_normals(c.kind, c.changes);
    CAPTURE(c.kind, nlohmann::json(c.changes).dump(), point.held, point.needed);
    CHECK(point.wasted() > 0.0);
  }
  for (const Part& part : quant::codec_parts()) {
    CAPTURE(part.name);
    CHECK((part.name == "passthrough" || tried.count(part.name) == 1));
  }
}

TEST_CASE("Lloyd-Max codes lie their known gap above the bound", "[rate_distortion]") {
  // Max, IRE Trans. Inf. Theory 6 (1960), table I: errors 0.3634, 0.1175, 0.03454, 0.009497.
  const auto [bits, error] =
      GENERATE(table<int64_t, double>({{1, 0.3634}, {2, 0.1175}, {3, 0.03454}, {4, 0.009497}}));
  CAPTURE(bits);
  const Point point = on_normals("codebook", {{"bits", bits}});
  const double of_norms = 16.0 / kHeadDim;  // an fp16 norm a row
  const double gap = static_cast<double>(bits) - needed_bits(error);
  CHECK(point.wasted() - of_norms == Approx(gap).margin(0.02));
}

TEST_CASE("a uniform grid wastes more than Lloyd and Max do", "[rate_distortion]") {
  // D07: 0.2501 at G = 128, which takes 1.00 bits, from 2.25 that are held.
  const Point uniform = on_normals("uniform", {});
  CHECK(uniform.held == 2.25);
  CHECK(uniform.wasted() == Approx(1.25).margin(0.03));
  CHECK(on_normals("codebook", {{"bits", 2}}).wasted() < uniform.wasted());
}
