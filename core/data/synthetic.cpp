#include "data/synthetic.h"

#include <ATen/Parallel.h>

#include <vector>

#include "base/error.h"
#include "data/content.h"
#include "data/synthetic_params.h"
#include "data/synthetic_rows.h"
#include "data/synthetic_spec.h"

namespace kvlab::data {
namespace {

/// A new [batch, heads, tokens, d] tensor; row(b, h, t, out) writes one row, on any thread. Rounded
/// to float, then to T, half to even.
template <class T, class Row>
at::Tensor filled(std::vector<int64_t> shape, const Row& row) {
  constexpr int64_t kGrain = 256;  // rows
  at::Tensor tensor = at::empty(shape, at::dtype(c10::CppTypeToScalarType<T>::value));
  T* all = tensor.mutable_data_ptr<T>();
  const int64_t heads = shape[1], tokens = shape[2], dim = shape[3];
  at::parallel_for(0, shape[0] * heads * tokens, kGrain, [&](int64_t begin, int64_t end) {
    std::vector<double> numbers(static_cast<size_t>(dim));
    for (int64_t i = begin; i < end; ++i) {
      row(i / tokens / heads, i / tokens % heads, i % tokens, numbers.data());
      T* out = all + i * dim;
      for (const double number : numbers) *out++ = static_cast<T>(static_cast<float>(number));
    }
  });
  return tensor;
}

template <class Row>
at::Tensor filled(DType type, std::vector<int64_t> shape, const Row& row) {
  switch (type) {
    case DType::fp16:
      return filled<c10::Half>(std::move(shape), row);
    case DType::bf16:
      return filled<c10::BFloat16>(std::move(shape), row);
    case DType::fp32:
      break;
  }
  return filled<float>(std::move(shape), row);
}

/// `turn` of each head's float32 [n, d], in the type of x [B, H, n, d]; one head at a time.
template <class Turn>
at::Tensor each_head(const at::Tensor& x, const Turn& turn) {
  at::Tensor result = at::empty_like(x);
  for (int64_t b = 0; b < x.size(0); ++b) {
    for (int64_t h = 0; h < x.size(1); ++h) result[b][h].copy_(turn(x[b][h].to(at::kFloat)));
  }
  return result;
}

/// What was made are the keys after RoPE, and those before it follow; or it stands before RoPE,
/// which turns keys and queries as a model does.
void add_rope(const SyntheticSpec& spec, Sample& sample) {
  if (spec.head_dim % 2 != 0) {
    const auto odd = [] { return Unsupported("RoPE turns pairs of channels, head_dim is odd"); };
    sample.more.k_pre = [odd]() -> at::Tensor { throw odd(); };
    sample.more.rope = [odd]() -> Rope { throw odd(); };
    return;
  }
  const Rope rope = Rope::of({.theta = spec.rope_theta}, spec.head_dim);
  sample.more.rope = [rope] { return rope; };
  if (!spec.before_rope) {
    sample.more.k_pre = [rope, k = sample.k] {
      return each_head(k, [&](const at::Tensor& x) { return rope.turned_back(x); });
    };
    return;
  }
  sample.more.k_pre = [k = sample.k] { return k; };
  const Rope::Angles all = rope.angles(0, spec.tokens);
  const Rope::Angles probes{all.cos.index_select(0, sample.positions),
                            all.sin.index_select(0, sample.positions)};
  sample.k = each_head(sample.k, [&](const at::Tensor& x) { return rope.turned(x, all); });
  sample.q = each_head(sample.q, [&](const at::Tensor& x) { return rope.turned(x, probes); });
}

}  // namespace

Sample make_synthetic(const Settings& params, int64_t seed, const ProbeChoice& probes) {
  const SyntheticSpec spec = read_spec(params);
  const std::vector<int64_t> positions = probe_positions(spec.tokens, probes);
  const int64_t count = static_cast<int64_t>(positions.size());
  const SyntheticRows rows(spec, seed);

  Sample sample;
  sample.dtype = spec.dtype;
  sample.positions = at::tensor(positions, at::kLong);
  const std::vector<int64_t> shape = {spec.batch, spec.kv_heads, spec.tokens, spec.head_dim};
  sample.k = filled(spec.dtype, shape,
                    [&](int64_t b, int64_t h, int64_t t, double* out) { rows.key(b, h, t, out); });
  sample.v = filled(spec.dtype, shape, [&](int64_t b, int64_t h, int64_t t, double* out) {
    rows.value(b, h, t, out);
  });
  sample.q = filled(spec.dtype, {spec.batch, spec.q_heads, count, spec.head_dim},
                    [&](int64_t b, int64_t h, int64_t i, double* out) {
                      rows.query(b, h, positions[static_cast<size_t>(i)], out);
                    });
  if (spec.hidden > 0) {
    sample.w_o =
        filled<float>({1, spec.hidden, spec.q_heads, spec.head_dim}, [&](int64_t, int64_t row,
                                                                         int64_t h, double* out) {
          rows.w_o(row, h, out);
        }).view({spec.hidden, spec.q_heads * spec.head_dim});
  }
  const auto lacks = [](const char* what) {
    return
        [what]() -> at::Tensor { throw Unsupported(std::string("synthetic data has no ") + what); };
  };
  add_rope(spec, sample);
  sample.more.hidden_absmax = lacks("hidden states");
  sample.more.grad_k = sample.more.grad_v = lacks("loss gradients");
  sample.more.every_query = [params, seed] {
    return make_synthetic(params, seed, {.placement = "all", .count = 0}).q;
  };
  return sample;
}

Description describe_synthetic(const Settings& params, const ProbeChoice& probes) {
  const Settings all = with_defaults(params);
  Description result;
  result.batch = get_int(all, "batch");
  result.kv_heads = get_int(all, "kv_heads");
  result.q_heads = get_int(all, "q_heads");
  result.tokens = get_int(all, "tokens");
  result.head_dim = get_int(all, "head_dim");
  result.probes = static_cast<int64_t>(probe_positions(result.tokens, probes).size());
  result.dtype = dtype_of(get_text(all, "dtype")).value_or(DType::fp32);
  result.has_w_o = get_int(all, "hidden") > 0;
  result.uses_seed = synthetic_uses_seed(params);
  result.layers = {0};
  result.content = synthetic_content(params);
  return result;
}

}  // namespace kvlab::data
