#include "quant/vector_codebook.h"

#include <fmt/format.h>

#include "base/error.h"
#include "quant/parts.h"
#include "quant/rounding.h"

namespace kvlab::quant {
namespace {

struct VectorSpec {
  int64_t width = 4;
  bool stratified = true;
  DType params = DType::fp16;
};

VectorSpec vector_spec(const Settings& codec) {
  return {get_int(codec, "width"), get_text(codec, "vectors") == "stratified",
          float_type(codec, "params")};
}

/// [..., d] to [..., vectors, width] and back. Stratified: channel r is part of vector r mod
/// (d/width), so that each has channels of every rank.
at::Tensor to_vectors(const at::Tensor& x, const VectorSpec& spec) {
  std::vector<int64_t> sizes = x.sizes().vec();
  const int64_t vectors = sizes.back() / spec.width;
  sizes.back() = spec.stratified ? spec.width : vectors;
  sizes.push_back(spec.stratified ? vectors : spec.width);
  const at::Tensor split = x.reshape(sizes);
  return spec.stratified ? split.transpose(-1, -2) : split;
}

at::Tensor from_vectors(const at::Tensor& x, const VectorSpec& spec) {
  return (spec.stratified ? x.transpose(-1, -2) : x).flatten(-2);
}

/// Root mean square of each row as it is stored, and the rows over it.
struct Scaled {
  at::Tensor stored, rows;
};

Scaled scaled(const at::Tensor& x, DType type) {
  const at::Tensor size = round_to(x.square().mean(-1, /*keepdim=*/true).sqrt(), type);
  return {size, x / size.masked_fill(size.eq(0), 1.0)};
}

class VectorCodebook final : public Codec {
 public:
  explicit VectorCodebook(VectorSpec spec) : spec_(spec) {}

  Encoded encode(const at::Tensor& x, const at::Tensor& shared) const override {
    if (!shared.defined()) throw Error("the codebook of a vector_codebook codec is missing");
    const Scaled unit = scaled(x, spec_.params);
    const at::Tensor vectors = to_vectors(unit.rows, spec_);
    Encoded encoded;
    encoded.codes = at::empty({x.size(0), x.size(1), vectors.size(2)}, at::kByte);
    for (int64_t head = 0; head < x.size(0); ++head) {
      for (int64_t i = 0; i < vectors.size(2); ++i) {
        encoded.codes[head].select(1, i).copy_(
            nearest_rows(vectors[head].select(1, i).contiguous(), shared[head][i]));
      }
    }
    encoded.params = unit.stored.to(scalar_type(spec_.params));
    encoded.saturated = at::zeros({x.size(0)}, at::kLong);
    encoded.shared = shared;
    return encoded;
  }

  at::Tensor decode(const Encoded& encoded) const override {
    const int64_t vectors = encoded.codes.size(2);
    const int64_t entries = encoded.shared.size(2);
    // Codebooks of a head one after the other, so that one index finds entry and vector.
    const at::Tensor base = at::arange(vectors, at::kLong) * entries;
    std::vector<at::Tensor> heads;
    for (int64_t head = 0; head < encoded.codes.size(0); ++head) {
      const at::Tensor place = encoded.codes[head].to(at::kLong) + base;
      heads.push_back(encoded.shared[head]
                          .flatten(0, 1)
                          .index_select(0, place.flatten())
                          .reshape({-1, vectors, spec_.width}));
    }
    return from_vectors(at::stack(heads), spec_) * encoded.params.to(at::kFloat);
  }

 private:
  VectorSpec spec_;
};

}  // namespace

Part vector_codebook_part() {
  using Type = Param::Type;
  std::vector<Param> params = {
      {.key = "width",
       .type = Type::integer,
       .fallback = 4,
       .least = 1,
       .most = 256,
       .help = "coordinates of a vector"},
      {.key = "entries",
       .type = Type::integer,
       .fallback = 256,
       .least = 2,
       .most = 256,
       .help = "entries of each codebook; a code has 8 bits"},
      {.key = "vectors",
       .fallback = "stratified",
       .choices = {"stratified", "adjacent"},
       .help = "which channels make a vector: every (d/width)-th, or neighbours"},
      {.key = "codebook_params",
       .fallback = "fp8_e5m2",
       .choices = {"fp8_e5m2", "fp16", "fp32"},
       .help = "type of the codebook's entries"},
      {.key = "codebook_stride",
       .type = Type::integer,
       .fallback = 4,
       .least = 1,
       .most = 1 << 20,
       .help = "k-means uses every so many-th token of the calibration set"},
      {.key = "codebook_steps",
       .type = Type::integer,
       .fallback = 25,
       .least = 1,
       .most = 10000,
       .help = "steps of k-means"}};
  for (Param& param : params_like_uniform({"params"})) params.push_back(std::move(param));
  return {.family = "codec",
          .name = "vector_codebook",
          .help =
              "vectors of coordinates as entries of calibrated codebooks, one for each KV head "
              "and place",
          .params = std::move(params),
          .calibrated = true,
          .refuse = [](const Settings& side, int64_t head_dim) -> std::optional<std::string> {
            const int64_t width = get_int(side, "codec.width");
            if (head_dim % width == 0) return std::nullopt;
            return fmt::format("vectors of {} coordinates do not divide the head dimension {}",
                               width, head_dim);
          }};
}

std::unique_ptr<Codec> make_vector_codebook(const Settings& codec, int64_t) {
  return std::make_unique<VectorCodebook>(vector_spec(codec));
}

at::Tensor learn_vector_codebook(const Settings& codec, const at::Tensor& x,
                                 const Progress& progress) {
  const VectorSpec spec = vector_spec(codec);
  const int64_t entries = get_int(codec, "entries");
  const int64_t stride = get_int(codec, "codebook_stride");
  const at::Tensor some = x.slice(1, 0, x.size(1), stride);
  if (some.size(1) < entries) {
    throw Unsupported(fmt::format(
        "{} calibration rows of a head make no codebook of {} entries (one row in {} is used)",
        some.size(1), entries, stride));
  }
  // [H·vectors, n, width]
  const at::Tensor rows =
      to_vectors(scaled(some, spec.params).rows, spec).transpose(1, 2).flatten(0, 1);
  const at::Tensor found = kmeans_rows(rows, entries, get_int(codec, "codebook_steps"), progress)
                               .reshape({x.size(0), x.size(2) / spec.width, entries, spec.width});
  const std::string type = get_text(codec, "codebook_params");
  if (type == "fp32") return found;
  if (type == "fp16") return round_to(found, DType::fp16);
  constexpr double kMost = 57344.0;
  return found.clamp(-kMost, kMost).to(at::kFloat8_e5m2).to(at::kFloat);
}

}  // namespace kvlab::quant
