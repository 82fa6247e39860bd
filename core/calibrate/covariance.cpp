#include "calibrate/covariance.h"

#include <bit>
#include <cmath>
#include <limits>

#include "calibrate/heads.h"
#include "transform/hadamard.h"
#include "transform/transform.h"

namespace kvlab::calibrate {
namespace {

/// One head's rows [B·n, d] in float64.
at::Tensor rows(const at::Tensor& x, int64_t head) {
  const at::Tensor one = x.select(1, head).to(at::kDouble);
  return one.reshape({-1, one.size(-1)});
}

/// Attention output of one sequence's queries of one head, in blocks of queries: [P, d].
at::Tensor causal_output(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                         const at::Tensor& positions) {
  constexpr int64_t block = 256;
  const double scale = 1.0 / std::sqrt(static_cast<double>(k.size(-1)));
  const at::Tensor token = at::arange(k.size(0), at::kLong);
  std::vector<at::Tensor> outputs;
  for (int64_t first = 0; first < q.size(0); first += block) {
    const int64_t count = std::min(block, q.size(0) - first);
    const at::Tensor hidden = token.unsqueeze(0).gt(positions.narrow(0, first, count).unsqueeze(1));
    at::Tensor logits = q.narrow(0, first, count).matmul(k.t()).mul_(scale);
    logits.masked_fill_(hidden, -std::numeric_limits<double>::infinity());
    outputs.push_back(logits.softmax(-1).matmul(v));
  }
  return at::cat(outputs);
}

/// OᵀO/N of query head j, which reads KV head `head`: [d, d].
at::Tensor output_product(const data::Sample& sample, int64_t head, int64_t j) {
  at::Tensor product = at::zeros({sample.head_dim(), sample.head_dim()}, at::kDouble);
  for (int64_t b = 0; b < sample.batch(); ++b) {
    const auto wide = [&](const at::Tensor& x, int64_t h) { return x[b][h].to(at::kDouble); };
    const at::Tensor output = causal_output(wide(sample.q, j), wide(sample.k, head),
                                            wide(sample.v, head), sample.positions);
    product += output.t().matmul(output);
  }
  return product / static_cast<double>(sample.batch() * sample.positions.size(0));
}

}  // namespace

at::Tensor query_covariance(const data::Sample& sample) {
  return stack_heads(sample.kv_heads(), [&](int64_t head) {
    const at::Tensor queries = sample.q.narrow(1, head * sample.group(), sample.group())
                                   .to(at::kDouble)
                                   .reshape({-1, sample.head_dim()});
    return queries.t().matmul(queries) / static_cast<double>(queries.size(0));
  });
}

at::Tensor proxy_covariance(const data::Sample& sample, const at::Tensor& query) {
  return stack_heads(sample.kv_heads(), [&](int64_t head) {
    const at::Tensor keys = rows(sample.k, head);
    const at::Tensor values = rows(sample.v, head);
    const auto n = static_cast<double>(keys.size(0));
    at::Tensor weight = keys.matmul(query[head]).mul_(keys).sum(-1);
    const double total = weight.sum().item<double>();
    weight = total > 0 ? weight * (n / total) : at::ones_like(weight);
    return values.t().matmul(values * weight.unsqueeze(-1)) / n;
  });
}

at::Tensor output_covariance(const data::Sample& sample) {
  const int64_t group = sample.group();
  return stack_heads(sample.kv_heads(), [&](int64_t head) {
    at::Tensor sum = at::zeros({sample.head_dim(), sample.head_dim()}, at::kDouble);
    for (int64_t j = head * group; j < (head + 1) * group; ++j) {
      sum += output_product(sample, head, j);
    }
    return sum / static_cast<double>(group);
  });
}

at::Tensor own_covariance(const at::Tensor& x) {
  return stack_heads(x.size(1), [&](int64_t head) {
    const at::Tensor own = rows(x, head);
    return own.t().matmul(own) / static_cast<double>(own.size(0));
  });
}

at::Tensor eigenvectors(const at::Tensor& covariance) {
  const auto [values, vectors] = at::linalg_eigh((covariance + covariance.transpose(-1, -2)) / 2);
  const at::Tensor place = vectors.abs().argmax(-2, /*keepdim=*/true);
  const at::Tensor sign = vectors.gather(-2, place).sign();
  return vectors * sign.masked_fill(sign.eq(0), 1.0);
}

at::Tensor compose_rotation(const at::Tensor& u, const std::string& factors) {
  const int64_t d = u.size(-1);
  at::Tensor product;
  const auto times = [&](const at::Tensor& factor) {
    product = product.defined() ? product.matmul(factor) : factor;
  };
  for (const char factor : factors) {
    if (factor == 'u') times(u);
    if (factor == 'h') times(transform::hadamard(d));
    if (factor != 'p') continue;
    if (!product.defined()) product = at::eye(d, at::kDouble);
    const int bits = std::countr_zero(static_cast<uint64_t>(d));
    std::vector<int64_t> source(static_cast<size_t>(d));
    for (int64_t i = 0; i < d; ++i) {
      source[static_cast<size_t>(transform::reverse_bits(i, bits))] = d - 1 - i;
    }
    product = product.index_select(-1, at::tensor(source, at::kLong)).contiguous();
  }
  return product;
}

at::Tensor covariance_rotation(const at::Tensor& covariance, const std::string& factors) {
  return stack_heads(covariance.size(0), [&](int64_t head) {
    return compose_rotation(eigenvectors(covariance[head]), factors);
  });
}

}  // namespace kvlab::calibrate
