#include "torch_attention.h"

#include <ATen/ATen.h>
#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/CUDAEvent.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/core/InferenceMode.h>
#include <c10/cuda/CUDAGuard.h>

#include <cmath>
#include <stdexcept>
#include <string>
#include <vector>

#include "library.h"
#include "sdpa.h"

namespace kvlab::torch_cuda {
namespace {

struct Tokens {
  at::Tensor key, value;  // bf16 [batch, kv_heads, tokens, dim]
};

/// ‖a − b‖ / ‖b‖ of the first sequence against plain products.
double error_of(const at::Tensor& query, const Tokens& tokens) {
  const auto first = [](const at::Tensor& x) { return x[0].to(at::kFloat); };
  const at::Tensor key = first(tokens.key);
  const at::Tensor q = first(query).reshape({key.size(0), -1, key.size(2)});
  const double scale = 1 / std::sqrt(static_cast<double>(key.size(2)));
  const at::Tensor right =
      (q * scale).matmul(key.transpose(1, 2)).softmax(-1).matmul(first(tokens.value));
  const at::Tensor found =
      first(one_token_attention(query, tokens.key, tokens.value)).reshape(right.sizes());
  return ((found - right).norm() / right.norm()).item<double>();
}

void time(const std::string& kind, const int* sizes, int copies, int launches, int samples,
          double* nanoseconds) {
  const c10::InferenceMode no_gradients;
  choose_sdpa(kind);
  const int64_t batch = sizes[0], count = sizes[1], q_heads = sizes[2], kv_heads = sizes[3],
                dim = sizes[4];
  const c10::cuda::CUDAStreamGuard guard(own_stream());
  const auto options = at::TensorOptions().device(at::kCUDA).dtype(at::kBFloat16);
  const at::Tensor query = at::randn({batch, q_heads, 1, dim}, options);
  std::vector<Tokens> all;
  for (int i = 0; i < copies; ++i) {
    all.push_back({at::randn({batch, kv_heads, count, dim}, options),
                   at::randn({batch, kv_heads, count, dim}, options)});
  }
  constexpr double kMost = 2e-2;  // bf16 weights and output
  const double error = error_of(query, all.front());
  if (!(error < kMost)) {
    throw std::runtime_error("the output is " + std::to_string(error) +
                             " away from plain products");
  }
  const auto attend = [&](int i) {
    const Tokens& tokens = all[static_cast<size_t>(i % copies)];
    one_token_attention(query, tokens.key, tokens.value);
  };
  for (int i = 0; i < launches; ++i) attend(i);
  c10::cuda::device_synchronize();

  at::cuda::CUDAGraph graph;
  graph.capture_begin();
  try {
    for (int i = 0; i < launches; ++i) attend(i);
  } catch (...) {
    graph.capture_end();
    throw;
  }
  graph.capture_end();
  graph.replay();
  at::cuda::CUDAEvent begin(cudaEventDefault), end(cudaEventDefault);
  for (int i = 0; i < samples; ++i) {
    graph.replay();  // busy while the sample is sent, as time_graph does it
    begin.record();
    graph.replay();
    end.record();
    end.synchronize();
    nanoseconds[i] = 1e6 * static_cast<double>(begin.elapsed_time(end)) / launches;
  }
}

}  // namespace
}  // namespace kvlab::torch_cuda

using namespace kvlab::torch_cuda;

int kvlab_torch_time(const char* kind, const int* sizes, int copies, int launches, int samples,
                     double* nanoseconds) {
  return guarded([&] { time(kind, sizes, copies, launches, samples, nanoseconds); });
}
