#include "peers/parts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <stdexcept>

#include "method/schema.h"
#include "quant/packing.h"

namespace peers {

using namespace kvlab;

Parts::Parts() { recipe_.settings = method::default_settings(); }

Parts& Parts::set(const std::string& key, const nlohmann::json& value) {
  if (auto wrong = method::apply_edit(recipe_, key, value)) throw std::runtime_error(*wrong);
  return *this;
}

Settings Parts::codec(const std::string& side) const {
  return below(recipe_.settings, side + ".codec.");
}

std::string shared_axis(const std::string& group_runs_along) {
  if (group_runs_along != "token" && group_runs_along != "channel") {
    throw std::runtime_error(
        fmt::format("axis '{}' is neither token nor channel", group_runs_along));
  }
  return group_runs_along == "token" ? "channel" : "token";
}

at::Tensor rounded(const at::Tensor& x, const std::string& type) {
  if (type == "fp32") return x.to(at::kFloat);
  return x.to(type == "fp16" ? at::kHalf : at::kBFloat16).to(at::kFloat);
}

at::Tensor ulp(const at::Tensor& x, const std::string& type, double ulps) {
  const int significant = type == "fp32" ? 24 : type == "fp16" ? 11 : 8;
  const at::Tensor exponent = std::get<1>(at::frexp(x.to(at::kDouble)));
  return (exponent.to(at::kDouble) - significant).exp2() * ulps;
}

Quantized quantize(const Settings& codec, const at::Tensor& x, const at::Tensor& threshold) {
  const auto made = quant::make_codec(codec, x.size(2));
  Quantized result;
  result.encoded = made->encode(x.contiguous(), threshold);
  result.codes = quant::unpack(result.encoded.codes, get_int(codec, "bits")).to(at::kLong);
  const at::Tensor params = result.encoded.params.to(at::kFloat);
  result.scale = params.select(-1, 0);
  if (params.size(-1) > 1) result.zero = params.select(-1, 1);
  result.values = made->decode(result.encoded);
  return result;
}

at::Tensor spread(const at::Tensor& per_group, const at::Tensor& x) {
  const auto whole = [&](int64_t dim) {
    return per_group.size(dim) > 0 && x.size(dim) % per_group.size(dim) == 0;
  };
  if (per_group.dim() != 3 || x.dim() != 3 || !whole(1) || !whole(2)) {
    throw std::runtime_error(fmt::format("a scale a group of shape [{}] does not cover [{}]",
                                         fmt::join(per_group.sizes().vec(), ", "),
                                         fmt::join(x.sizes().vec(), ", ")));
  }
  return per_group.repeat_interleave(x.size(1) / per_group.size(1), 1)
      .repeat_interleave(x.size(2) / per_group.size(2), 2);
}

at::Tensor words(const at::Tensor& codes) {
  std::vector<int64_t> sizes = codes.sizes().vec();
  sizes.back() /= 16;
  sizes.push_back(16);
  const at::Tensor shifts = at::arange(16, at::kLong) * 2;
  return codes.to(at::kLong).reshape(sizes).bitwise_left_shift(shifts).sum(-1).to(at::kInt).to(
      at::kLong);
}

}  // namespace peers
