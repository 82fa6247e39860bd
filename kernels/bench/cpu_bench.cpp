// The CPU kernels on two threads: `encode`, `decode` and `dequantize`, beside libtorch doing the
// first two.

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <cmath>
#include <memory>
#include <utility>

#include "cpu_case.h"
#include "cpu_measure.h"

namespace kvlab::bench {
namespace {

/// One case is alive at a time; benchmarks of one shape and format follow each other.
CpuCase& case_of(const CpuCase::Shape& shape) {
  static std::unique_ptr<CpuCase> held;
  const auto same = [&](const CpuCase::Shape& other) {
    return other.format == shape.format && other.tokens == shape.tokens &&
           other.q_heads == shape.q_heads && other.kv_heads == shape.kv_heads &&
           other.dim == shape.dim;
  };
  if (!held || !same(held->shape())) {
    held.reset();
    held = std::make_unique<CpuCase>(shape, kThreads);
  }
  return *held;
}

at::Tensor view(const std::vector<std::uint16_t>& numbers, const CpuCase::Shape& shape) {
  return at::from_blob(const_cast<std::uint16_t*>(numbers.data()),
                       {shape.kv_heads, shape.tokens, shape.dim}, at::kBFloat16);
}

at::Tensor view(const std::vector<float>& rows, const CpuCase::Shape& shape) {
  return at::from_blob(const_cast<float*>(rows.data()), {1, shape.q_heads, 1, shape.dim});
}

at::Tensor hadamard(int dim) {
  at::Tensor h = at::ones({1, 1});
  while (h.size(0) < dim) h = at::cat({at::cat({h, h}, 1), at::cat({h, -h}, 1)}, 0);
  return h / std::sqrt(static_cast<double>(dim));
}

/// What the eager chain leaves of a side.
struct Eager {
  at::Tensor packed, scale, zero, norm;
};

/// The arithmetic of `encode` as a chain of libtorch operations: one matrix product for the
/// rotation, aminmax for the ranges, codes packed by shifts. groups: the grouped view's shape;
/// group_dim: the dimension within a group.
Eager eager_side(const at::Tensor& captured, const at::Tensor& rotation, bool norm,
                 const std::vector<int64_t>& groups, int64_t group_dim) {
  Eager result;
  at::Tensor x = captured.to(at::kFloat).matmul(rotation);
  if (norm) {
    result.norm = x.square().sum(-1, true).sqrt().to(at::kHalf);
    x = x / result.norm.to(at::kFloat);
  }
  x = x.reshape(groups);
  const auto [lo, hi] = x.aminmax(group_dim, true);
  result.scale = ((hi - lo) / 3.0f).to(at::kHalf);
  result.zero = lo.to(at::kHalf);
  const at::Tensor scale = result.scale.to(at::kFloat);
  const at::Tensor codes =
      ((x - result.zero.to(at::kFloat)) / scale).round().clamp(0, 3).to(at::kByte);
  const at::Tensor four = codes.reshape({captured.size(0), captured.size(1), -1, 4});
  result.packed = four.select(-1, 0)
                      .bitwise_or(four.select(-1, 1).mul(4))
                      .bitwise_or(four.select(-1, 2).mul(16))
                      .bitwise_or(four.select(-1, 3).mul(64));
  return result;
}

/// Codes and parameters of an eager side as values [kv_heads, n, dim].
at::Tensor eager_values(const Eager& side, const std::vector<int64_t>& groups, int64_t n) {
  std::vector<at::Tensor> four;
  for (const int64_t place : {1, 4, 16, 64}) {
    four.push_back(side.packed.div(place, "floor").bitwise_and(3));
  }
  const at::Tensor codes = at::stack(four, -1).to(at::kFloat).reshape(groups);
  return (codes * side.scale.to(at::kFloat) + side.zero.to(at::kFloat)).reshape({groups[0], n, -1});
}

struct EagerCase {
  explicit EagerCase(const CpuCase& c)
      : format(kernels::format_named(c.shape().format, c.shape().dim)),
        rotation(hadamard(c.shape().dim)),
        key(view(c.key(), c.shape()).slice(1, 0, c.history())),
        value(view(c.value(), c.shape()).slice(1, 0, c.history())) {
    key_groups = groups_of(c, format.key);
    value_groups = groups_of(c, format.value);
  }

  static std::vector<int64_t> groups_of(const CpuCase& c, const kernels::SideFormat& side) {
    const int64_t heads = c.shape().kv_heads;
    if (side.axis == kernels::Axis::channel) {
      return {heads, c.history() / side.group, side.group, c.shape().dim};
    }
    return {heads, c.history(), c.shape().dim / side.group, side.group};
  }

  Eager keys() const {
    return eager_side(key, rotation, format.norm != kernels::Norm::none, key_groups,
                      format.key.axis == kernels::Axis::channel ? 2 : 3);
  }
  Eager values() const { return eager_side(value, rotation, false, value_groups, 3); }

  kernels::Format format;
  at::Tensor rotation, key, value;
  std::vector<int64_t> key_groups, value_groups;
};

/// Share of elements whose decoded value differs by more than rounding: codes at ties.
double share_apart(const at::Tensor& a, const at::Tensor& b) {
  return (a - b).abs().gt(1e-3).to(at::kFloat).mean().item<double>();
}

/// The decoded history, float32 [kv_heads, tokens, dim].
struct Decoded {
  at::Tensor key, value;
};

Decoded decoded(const CpuCase& c, const kernels::EncodeSpec* spec) {
  const CpuCase::Shape& shape = c.shape();
  Decoded tokens{at::empty({shape.kv_heads, shape.tokens, shape.dim}),
                 at::empty({shape.kv_heads, shape.tokens, shape.dim})};
  c.dequantize(spec, tokens.key.mutable_data_ptr<float>(), tokens.value.mutable_data_ptr<float>(),
               kThreads);
  return tokens;
}

/// Empty where the kernels' codes are those of the eager chain away from ties.
std::string wrong_codes(const CpuCase& c) {
  const EagerCase eager(c);
  const Decoded ours = decoded(c, nullptr);
  const double apart =
      std::max(share_apart(ours.key.slice(1, 0, c.history()),
                           eager_values(eager.keys(), eager.key_groups, c.history())),
               share_apart(ours.value.slice(1, 0, c.history()),
                           eager_values(eager.values(), eager.value_groups, c.history())));
  return apart < 1e-3 ? "" : fmt::format("a share of {} of the codes differs", apart);
}

/// The tokens that attention reads: the decoded history, the last tokens as captured.
Decoded read_tokens(const CpuCase& c) {
  Decoded tokens = decoded(c, &c.spec());
  const int64_t end = c.shape().tokens;
  const auto complete = [&](at::Tensor& side, const std::vector<std::uint16_t>& captured) {
    side.slice(1, c.history(), end).copy_(view(captured, c.shape()).slice(1, c.history(), end));
  };
  complete(tokens.key, c.key());
  complete(tokens.value, c.value());
  return tokens;
}

/// libtorch's forms of float32 attention of one token's queries [1, q_heads, 1, dim] over unpacked
/// tokens.
at::Tensor grouped_form(const at::Tensor& q, const Decoded& t) {
  return at::scaled_dot_product_attention(q, t.key.unsqueeze(0), t.value.unsqueeze(0), {}, 0.0,
                                          false, {}, /*enable_gqa=*/true);
}

at::Tensor folded_form(const at::Tensor& q, const Decoded& t) {
  const at::Tensor folded = q.reshape({1, t.key.size(0), -1, q.size(3)});
  return at::scaled_dot_product_attention(folded, t.key.unsqueeze(0), t.value.unsqueeze(0));
}

/// As product_form, but tokens are the rows of the first product.
at::Tensor turned_form(const at::Tensor& q, const Decoded& t) {
  const at::Tensor folded = q.reshape({t.key.size(0), -1, q.size(3)});
  const double scale = 1 / std::sqrt(static_cast<double>(q.size(3)));
  const at::Tensor weights = t.key.matmul((folded * scale).transpose(1, 2)).softmax(1);
  return weights.transpose(1, 2).matmul(t.value);
}

at::Tensor product_form(const at::Tensor& q, const Decoded& t) {
  const at::Tensor folded = q.reshape({t.key.size(0), -1, q.size(3)});
  const double scale = 1 / std::sqrt(static_cast<double>(q.size(3)));
  return (folded * scale).matmul(t.key.transpose(1, 2)).softmax(-1).matmul(t.value);
}

/// Empty where the kernels' output is float64 attention over the same decoded tokens.
std::string wrong_output(CpuCase& c) {
  c.attend(kThreads);
  const Decoded tokens = read_tokens(c);
  const at::Tensor right = product_form(view(c.query(), c.shape()).to(at::kDouble),
                                        {tokens.key.to(at::kDouble), tokens.value.to(at::kDouble)});
  const at::Tensor ours = view(c.output(), c.shape()).reshape(right.sizes()).to(at::kDouble);
  const double error = ((ours - right).norm() / right.norm()).item<double>();
  return error < 2e-3 ? "" : fmt::format("the relative error is {}", error);
}

void encode_cpu(benchmark::State& state, const CpuCase::Shape& shape, bool cold) {
  CpuCase& c = case_of(shape);
  c.encode(kThreads);
  measure(state, cold, c.encode_bytes(), wrong_codes(c), [&] { c.encode(kThreads); });
}

void encode_eager(benchmark::State& state, const CpuCase::Shape& shape, bool cold) {
  const CpuCase& c = case_of(shape);
  const EagerCase eager(c);
  measure(state, cold, c.encode_bytes(), wrong_codes(c), [&] {
    benchmark::DoNotOptimize(eager.keys());
    benchmark::DoNotOptimize(eager.values());
  });
}

void decode_cpu(benchmark::State& state, const CpuCase::Shape& shape, bool cold) {
  CpuCase& c = case_of(shape);
  measure(state, cold, c.attend_bytes(), wrong_output(c), [&] { c.attend(kThreads); });
}

/// History as float32, as captured.
void dequantize_cpu(benchmark::State& state, const CpuCase::Shape& shape, bool cold) {
  CpuCase& c = case_of(shape);
  const std::string wrong = wrong_output(c);
  const Decoded tokens = decoded(c, &c.spec());
  const double bytes = c.attend_bytes() + 2.0 * 4.0 * static_cast<double>(tokens.key.numel());
  measure(state, cold, bytes, wrong, [&] {
    c.dequantize(&c.spec(), tokens.key.mutable_data_ptr<float>(),
                 tokens.value.mutable_data_ptr<float>(), kThreads);
  });
}

using Form = at::Tensor (*)(const at::Tensor&, const Decoded&);

void decode_torch(benchmark::State& state, const CpuCase::Shape& shape, bool cold, Form form) {
  const CpuCase& c = case_of(shape);
  const Decoded tokens = read_tokens(c);
  const at::Tensor query = view(c.query(), shape);
  const double bytes = 2.0 * 4.0 * static_cast<double>(tokens.key.numel());
  measure(state, cold, bytes, "", [&] { benchmark::DoNotOptimize(form(query, tokens)); });
}

template <class Function>
void add(const std::string& operation, const std::string& backend, const CpuCase::Shape& shape,
         const std::string& format, const std::string& variant, Function function) {
  CaseName parts{operation, backend, format, 1, shape.tokens};
  parts.q_heads = shape.q_heads;
  parts.kv_heads = shape.kv_heads;
  parts.dim = shape.dim;
  parts.variant = variant;
  if (variant.empty()) parts.group = kernels::format_named(format, shape.dim).key.group;
  add_cpu_case(parts, [=](benchmark::State& state, bool cold) { function(state, shape, cold); });
}

}  // namespace

void register_cpu() {
  for (const char* format : {"f1", "f2"}) {
    CpuCase::Shape shape;
    shape.format = format;
    add("encode", "cpu", shape, format, "", encode_cpu);
    add("encode", "torch_eager", shape, format, "", encode_eager);
    add("decode", "cpu", shape, format, "", decode_cpu);
    add("dequantize", "cpu", shape, format, "", dequantize_cpu);
    for (const auto& [tokens, dim] :
         {std::pair{4096, 128}, std::pair{32768, 64}, std::pair{32768, 256}}) {
      CpuCase::Shape other = shape;
      other.tokens = tokens;
      other.dim = dim;
      add("encode", "cpu", other, format, "", encode_cpu);
      add("decode", "cpu", other, format, "", decode_cpu);
    }
  }
  for (const char* format :
       {"k:token,g64,b2;v:token,g64,b2", "k:token,g128,b4;v:token,g128,b4",
        "k:channel,g32,b4;v:token,g32,b4", "k:channel,g32,b8;v:token,g32,b8"}) {
    CpuCase::Shape shape;
    shape.format = format;
    add("decode", "cpu", shape, format, "", decode_cpu);
  }
  const auto baseline = [](const std::string& backend, const std::string& form, Form function) {
    CpuCase::Shape shape;
    add("decode", backend, shape, "f32", "form:" + form,
        [function](benchmark::State& state, const CpuCase::Shape& s, bool cold) {
          decode_torch(state, s, cold, function);
        });
  };
  baseline("torch_sdpa", "enable_gqa", grouped_form);
  baseline("torch_sdpa", "folded", folded_form);
  baseline("torch_eager", "products", product_form);
  baseline("torch_eager", "products_turned", turned_form);
}

}  // namespace kvlab::bench
