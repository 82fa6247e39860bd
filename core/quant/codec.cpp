#include "quant/codec.h"

#include <functional>

#include "base/error.h"
#include "quant/boosted.h"
#include "quant/codebook.h"
#include "quant/float_codec.h"
#include "quant/parts.h"
#include "quant/sparse_dense.h"
#include "quant/token_rows.h"
#include "quant/uniform.h"
#include "quant/vector_codebook.h"

namespace kvlab::quant {

namespace {

int64_t bytes_of(const at::Tensor& x) { return x.defined() ? x.numel() * x.element_size() : 0; }

}  // namespace

int64_t Encoded::code_bytes() const {
  int64_t bytes = bytes_of(codes);
  for (const at::Tensor& one : more) bytes += bytes_of(one);
  return bytes;
}

int64_t Encoded::param_bytes() const { return bytes_of(params); }

std::unique_ptr<Codec> make_codec(const Settings& codec, int64_t head_dim) {
  using Factory = std::function<std::unique_ptr<Codec>(const Settings&, int64_t)>;
  static const std::map<std::string, Factory> factories = {
      {"uniform", make_uniform},
      {"boosted", make_boosted},
      {"codebook", make_codebook},
      {"sketched_codebook", make_sketched_codebook},
      {"vector_codebook", make_vector_codebook},
      {"sparse_dense", make_sparse_dense},
      {"float", make_float},
  };
  const std::string kind = get_text(codec, "kind");
  const auto factory = factories.find(kind);
  if (spans_heads(codec)) return make_token_rows(codec);
  if (factory == factories.end()) throw Unsupported("codec '" + kind + "' has no tensor form");
  return factory->second(codec, head_dim);
}

at::Tensor learn_codebook(const Settings& codec, const at::Tensor& x, const at::Tensor& weight,
                          const Progress& progress) {
  if (weighs_values(codec)) {
    if (!spans_heads(codec)) return learn_sparse_dense(codec, x, weight);
    const at::Tensor weights = weight.defined() ? side_by_side(weight) : weight;
    return learn_sparse_dense(codec, side_by_side(x), weights).expand({x.size(0), -1}).contiguous();
  }
  return learn_vector_codebook(codec, x, progress);
}

}  // namespace kvlab::quant
