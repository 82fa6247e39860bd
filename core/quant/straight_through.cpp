#include "quant/straight_through.h"

#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "quant/uniform.h"

namespace kvlab::quant {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::tensor_list;

/// With u = (x − lo)/s and the code c held at distance r = c − u, the decoded value is x + r·s: the
/// gradient of x is the output's own, that of s the sum of output times r.
class StraightThrough : public torch::autograd::Function<StraightThrough> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x,
                            const UniformSpec& spec) {
    const at::Tensor threshold = clip_threshold(x, spec, {});
    const at::Tensor groups = grouped(x, spec);
    const at::Tensor clipped =
        threshold.defined() ? at::clamp(groups, threshold.neg(), threshold) : groups;
    const UniformParams params = uniform_params(clipped, spec);
    const at::Tensor codes = uniform_codes(clipped, params, spec).clamp_(0, largest_code(spec));

    const at::Tensor inverse = params.scale.reciprocal().masked_fill_(params.flat, 0.0);
    const at::Tensor distance = codes - (clipped - params.zero).mul_(inverse);
    context->save_for_backward({groups, clipped, distance, threshold});
    context->saved_data["steps"] = largest_code(spec);
    return uniform_values(codes, params, spec).reshape(x.sizes());
  }

  static tensor_list backward(AutogradContext* context, tensor_list outputs) {
    const tensor_list saved = context->get_saved_variables();
    const at::Tensor& groups = saved[0];
    const at::Tensor& clipped = saved[1];
    const at::Tensor& distance = saved[2];
    const at::Tensor& threshold = saved[3];
    const at::Tensor output = outputs[0].reshape(groups.sizes());

    const auto [lo, hi] = clipped.aminmax(-1, /*keepdim=*/true);
    const at::Tensor highest = clipped.eq(hi).to(at::kFloat);
    const at::Tensor lowest = clipped.eq(lo).to(at::kFloat);
    const at::Tensor range =
        (output * distance).sum(-1, /*keepdim=*/true) / context->saved_data["steps"].toDouble();
    at::Tensor gradient = output + highest * (range / highest.sum(-1, /*keepdim=*/true));
    gradient.sub_(lowest * (range / lowest.sum(-1, /*keepdim=*/true)));
    if (threshold.defined()) {
      const at::Tensor half = at::full({}, 0.5, groups.options());
      gradient.mul_(at::heaviside(threshold - groups.abs(), half));
    }
    return {gradient.reshape(outputs[0].sizes()), at::Tensor()};
  }
};

}  // namespace

at::Tensor straight_through(const at::Tensor& x, int64_t bits, int64_t group,
                            std::optional<double> clip) {
  UniformSpec spec;
  spec.bits = bits;
  spec.group = std::min(group, x.size(2));
  spec.clip = clip && *clip > 0.0 && *clip < 1.0 ? clip : std::nullopt;
  spec.clip_scope = UniformSpec::ClipScope::group;
  spec.rounding = UniformSpec::Rounding::half_up;
  spec.params = DType::fp32;
  return StraightThrough::apply(x, spec);
}

}  // namespace kvlab::quant
