#include "quant/token_rows.h"

namespace kvlab::quant {
namespace {

class TokenRows final : public Codec {
 public:
  explicit TokenRows(const Settings& codec) : codec_(codec) { codec_["row"] = "head"; }

  Encoded encode(const at::Tensor& x, const at::Tensor& shared) const override {
    const at::Tensor rows = side_by_side(x);
    const at::Tensor one = shared.defined() ? shared.narrow(0, 0, 1) : shared;
    Encoded encoded = of_width(rows.size(2))->encode(rows, one);
    // The count is the layer's; which heads' it is, rows do not tell.
    const at::Tensor saturated = at::zeros({x.size(0)}, at::kLong);
    saturated.narrow(0, 0, 1).copy_(encoded.saturated);
    encoded.saturated = saturated;
    return encoded;
  }

  at::Tensor decode(const Encoded& encoded) const override {
    const int64_t heads = encoded.saturated.size(0);
    const int64_t width = encoded.codes.size(2) * 8 / get_int(codec_, "bits");
    return of_width(width)
        ->decode(encoded)
        .unflatten(2, {heads, width / heads})
        .squeeze(0)
        .transpose(0, 1)
        .contiguous();
  }

 private:
  std::unique_ptr<Codec> of_width(int64_t width) const {
    Settings codec = codec_;
    codec["group"] = width;
    return make_codec(codec, width);
  }

  Settings codec_;
};

}  // namespace

at::Tensor side_by_side(const at::Tensor& x) { return x.transpose(0, 1).flatten(1).unsqueeze(0); }

std::unique_ptr<Codec> make_token_rows(const Settings& codec) {
  return std::make_unique<TokenRows>(codec);
}

}  // namespace kvlab::quant
