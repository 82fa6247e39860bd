#include "metrics/evaluate.h"

#include <c10/core/GradMode.h>

#include <algorithm>
#include <limits>

#include "metrics/attention.h"
#include "metrics/memory.h"
#include "metrics/norms.h"
#include "quant/parts.h"

namespace kvlab::metrics {
namespace {

using cache::Windows;
constexpr double nan = std::numeric_limits<double>::quiet_NaN();

/// One side of a cell: its errors, and the sizes of its buffers.
class Side {
 public:
  Side(const calibrate::PreparedSide& prepared, const Settings& settings,
       const at::Tensor& captured, DType dtype, const Windows& windows)
      : prepared_(prepared), settings_(settings), captured_(captured), begin_(windows.begin()) {
    const int64_t batch = captured.size(0);
    const int64_t heads = captured.size(1);
    const int64_t d = captured.size(3);
    bytes_.quantized = !prepared.passthrough;
    bytes_.token_elements = batch * heads * d;
    bytes_.captured_row = bytes_.token_elements * size_of(dtype);
    count_ = prepared.passthrough ? 0 : windows.span_end() - begin_;
    squared_error_ = at::zeros({batch, heads, count_}, at::kDouble);
    squared_ = at::zeros({batch, heads, count_}, at::kDouble);
    codec_norm_ = at::zeros({batch, heads, count_}, at::kDouble);
    saturated_ = at::zeros({heads}, at::kDouble);
    nonfinite_ = at::zeros({heads}, at::kDouble);
    if (prepared.passthrough) return;

    scales_ = prepared.transform.scales(span());
    const transform::TokenScale& scale = prepared.transform.token_scale();
    if (scales_.defined()) bytes_.scale_row = batch * scales_.size(1) * size_of(scale.params);
    bytes_.row_tokens = quant::token_group(below(settings_, "codec."));
    if (prepared.transform.center().defined()) bytes_.center = heads * d * 4;
    if (prepared.stored_rotation.defined()) bytes_.rotation = prepared.stored_rotation.numel() * 4;
  }

  /// Encodes and decodes one head of one sequence: float64 [n, d] in captured space; undefined
  /// where passthrough.
  at::Tensor decode(int64_t sequence, int64_t head) {
    if (prepared_.passthrough) return {};
    at::Tensor decoded = at::empty({count_, captured_.size(3)}, at::kDouble);
    // Groups are independent, so a stretch at a time gives the same numbers and keeps temporaries
    // within the cache.
    const int64_t stretch = bytes_.row_tokens * std::max<int64_t>(1, kStretch / bytes_.row_tokens);
    for (int64_t first = 0; first < count_; first += stretch) {
      const int64_t n = std::min(stretch, count_ - first);
      decode_stretch(sequence, head, first, n, decoded.narrow(0, first, n));
    }
    if (count_ == 0) {
      // Too short to quantize anything: one row of zeros tells what longer caches will hold.
      const at::Tensor row = at::zeros({1, bytes_.row_tokens, captured_.size(3)}, at::kFloat);
      count_bytes(prepared_.codec->encode(row, threshold(head)));
    }
    return decoded;
  }

  /// "k_mse" and "k_nmse", or those of v.
  void errors(const std::string& name, Arrays& arrays) const {
    const int64_t heads = captured_.size(1);
    if (prepared_.passthrough) {
      arrays[name + "_mse"] = arrays[name + "_nmse"] = at::zeros({heads}, at::kDouble);
      return;
    }
    if (count_ == 0) {
      arrays[name + "_mse"] = arrays[name + "_nmse"] = at::full({heads}, nan, at::kDouble);
      return;
    }
    const at::Tensor error = squared_error_.sum(kSequenceAndToken);
    const auto elements = static_cast<double>(captured_.size(0) * count_ * captured_.size(3));
    arrays[name + "_mse"] = error / elements;
    arrays[name + "_nmse"] = ratio(error, squared_.sum(kSequenceAndToken));
  }

  /// A [B, Hkv, n] array over the span as [B, Hkv, T], NaN outside it.
  at::Tensor over_all_tokens(const at::Tensor& array) const {
    at::Tensor all =
        at::full({captured_.size(0), captured_.size(1), captured_.size(2)}, nan, at::kDouble);
    all.narrow(2, begin_, count_).copy_(array);
    return all;
  }

  bool passthrough() const { return prepared_.passthrough; }
  int64_t count() const { return count_; }
  const at::Tensor& squared_error() const { return squared_error_; }
  const at::Tensor& codec_norm() const { return codec_norm_; }
  const at::Tensor& saturated() const { return saturated_; }
  const at::Tensor& nonfinite() const { return nonfinite_; }

  /// Sizes of the rows of the buffers that encoding left.
  SideBytes bytes() const {
    SideBytes bytes = bytes_;
    const int64_t tokens = std::max(count_, bytes_.row_tokens);
    bytes.code_row = code_bytes_ / tokens;
    bytes.param_row = param_bytes_ / (tokens / bytes_.row_tokens);
    return bytes;
  }

 private:
  static constexpr int64_t kStretch = 4096;  // tokens

  at::Tensor span() const { return captured_.narrow(2, begin_, count_); }

  at::Tensor threshold(int64_t head) const {
    return prepared_.threshold.defined() ? prepared_.threshold.narrow(0, head, 1) : at::Tensor();
  }

  void count_bytes(const quant::Encoded& encoded) {
    code_bytes_ += encoded.codes.numel() * encoded.codes.element_size();
    param_bytes_ += encoded.params.numel() * encoded.params.element_size();
  }

  /// Tokens [first, first + n) of the span into `decoded`, with their errors, norms and counts.
  void decode_stretch(int64_t sequence, int64_t head, int64_t first, int64_t n,
                      const at::Tensor& decoded) {
    const at::Tensor x = span()[sequence][head].narrow(0, first, n);
    const auto part = [&](const at::Tensor& of) { return of[sequence][head].narrow(0, first, n); };
    at::Tensor scale;
    if (scales_.defined())
      scale = scales_[sequence][scales_.size(1) == 1 ? 0 : head].narrow(0, first, n);
    const at::Tensor entering = prepared_.transform.forward(x, head, scale);
    const quant::Encoded encoded = prepared_.codec->encode(entering.unsqueeze(0), threshold(head));
    count_bytes(encoded);
    decoded.copy_(prepared_.transform.backward(prepared_.codec->decode(encoded)[0], head, scale));

    const at::Tensor exact = x.to(at::kDouble);
    part(squared_error_).copy_((decoded - exact).square_().sum(-1));
    part(squared_).copy_(exact.square().sum(-1));
    part(codec_norm_).copy_(entering.to(at::kDouble).square_().sum(-1).sqrt_());
    saturated_[head] += encoded.saturated[0].to(at::kDouble);
    nonfinite_[head] += decoded.isfinite().logical_not_().sum().to(at::kDouble);
  }

  const calibrate::PreparedSide& prepared_;
  Settings settings_;
  at::Tensor captured_;  // [B, Hkv, T, d]
  int64_t begin_;
  int64_t count_ = 0;  // tokens of the span
  at::Tensor scales_;
  at::Tensor squared_error_, squared_, codec_norm_;  // [B, Hkv, n]
  at::Tensor saturated_, nonfinite_;                 // [Hkv]
  SideBytes bytes_;                                  // but for the rows that encoding fills
  int64_t code_bytes_ = 0, param_bytes_ = 0;
};

/// Norms of all captured rows [B, Hkv, T], head by head.
at::Tensor captured_norms(const at::Tensor& x) {
  std::vector<at::Tensor> heads;
  for (int64_t head = 0; head < x.size(1); ++head) {
    heads.push_back(x.select(1, head).to(at::kDouble).square_().sum(-1).sqrt_());
  }
  return at::stack(heads, 1);
}

/// Positions of the probes and where each reads the history up to, int64 [P].
struct ProbeLimits {
  ProbeLimits(const Windows& windows, const at::Tensor& probes) : positions(probes) {
    std::vector<int64_t> keys, values;
    for (int64_t i = 0; i < probes.size(0); ++i) {
      const auto p = probes[i].item<int64_t>();
      keys.push_back(windows.boundary(Windows::Side::key, p));
      values.push_back(windows.boundary(Windows::Side::value, p));
    }
    key = at::tensor(keys, at::kLong);
    value = at::tensor(values, at::kLong);
  }

  at::Tensor positions, key, value;
};

/// All query heads of one KV head, some probes at a time: temporaries of [probes, T] stay at a few
/// megabytes.
void attend(const SampleContext& context, attention::HeadCache& cache, const ProbeLimits& limits,
            int64_t sequence, int64_t head, AttentionErrors& errors) {
  constexpr int64_t kWeights = 1 << 19;
  const data::Sample& sample = context.sample();
  const int64_t probes = sample.positions.size(0);
  const int64_t some = std::max<int64_t>(1, kWeights / sample.tokens());
  cache.k = sample.k[sequence][head].to(at::kDouble);
  cache.v = sample.v[sequence][head].to(at::kDouble);
  for (int64_t j = head * sample.group(); j < (head + 1) * sample.group(); ++j) {
    for (int64_t first = 0; first < probes; first += some) {
      const int64_t count = std::min(some, probes - first);
      const auto part = [&](const at::Tensor& of) { return of.narrow(0, first, count); };
      cache.key_boundary = part(limits.key);
      cache.value_boundary = part(limits.value);
      const attention::Exact exact = context.exact(sequence, j, cache.k, cache.v, first, count);
      errors.add(sequence, j, first, exact,
                 attention::cached_attention(part(sample.q[sequence][j]).to(at::kDouble), cache,
                                             exact, part(limits.positions)));
    }
  }
}

void norm_metrics(const data::Sample& sample, const Side& key, const Settings& codec,
                  const Windows& windows, Arrays& arrays) {
  const at::Tensor norms = captured_norms(sample.k);
  arrays.merge(norm_imbalance(norms));
  if (key.passthrough()) {
    for (const char* name : {"tni_ratio_in", "tni_block_ratio", "tni_bound", "tni_block_mse"}) {
      arrays[name] = at::full({sample.kv_heads()}, nan, at::kDouble);
    }
    return;
  }
  arrays["tni_ratio_in"] = norm_ratio(key.codec_norm()).mean(0);
  const auto axis = codec.find("axis");
  const bool per_channel = axis != codec.end() && axis->second == "channel";
  const int64_t block = per_channel ? get_int(codec, "group") : 32;
  arrays.merge(block_imbalance(norms.narrow(2, windows.begin(), key.count()), key.squared_error(),
                               block, get_int(codec, "bits")));
}

}  // namespace

Measured evaluate(const SampleContext& context, const calibrate::Prepared& method,
                  const method::Recipe& recipe, const std::set<std::string>& measure) {
  const c10::NoGradGuard no_grad;
  const data::Sample& sample = context.sample();
  const Windows windows(recipe.settings, sample.tokens());
  const Settings key_settings = recipe.side("key");
  Side key(method.key, key_settings, sample.k, sample.dtype, windows);
  Side value(method.value, recipe.side("value"), sample.v, sample.dtype, windows);
  const bool attention = measure.count("attention") > 0 || measure.count("tokens") > 0;
  AttentionErrors attention_errors(sample.q, sample.w_o);
  const ProbeLimits limits(windows, sample.positions);

  for (int64_t b = 0; b < sample.batch(); ++b) {
    for (int64_t head = 0; head < sample.kv_heads(); ++head) {
      attention::HeadCache cache;
      cache.begin = windows.begin();
      cache.k_read = key.decode(b, head);
      cache.v_read = value.decode(b, head);
      if (attention) attend(context, cache, limits, b, head, attention_errors);
    }
  }

  Measured measured;
  Arrays& arrays = measured.metrics;
  if (measure.count("error")) {
    key.errors("k", arrays);
    value.errors("v", arrays);
    arrays["saturated"] = key.saturated() + value.saturated();
    arrays["nonfinite"] = key.nonfinite() + value.nonfinite();
  }
  if (measure.count("attention")) arrays.merge(attention_errors.finish());
  if (measure.count("tni"))
    norm_metrics(sample, key, below(key_settings, "codec."), windows, arrays);
  if (measure.count("memory"))
    arrays.merge(memory(key.bytes(), value.bytes(), windows, sample.tokens()));
  if (measure.count("tokens")) {
    measured.tokens = attention_errors.by_probe();
    measured.tokens["k_se"] = key.over_all_tokens(key.squared_error());
    measured.tokens["v_se"] = value.over_all_tokens(value.squared_error());
    measured.tokens["k_norm"] = captured_norms(sample.k);
    measured.tokens["v_norm"] = captured_norms(sample.v);
  }
  const int64_t last = sample.tokens() - 1;
  measured.hist_key[0] = measured.hist_value[0] = windows.begin();
  measured.hist_key[1] = windows.boundary(Windows::Side::key, last);
  measured.hist_value[1] = windows.boundary(Windows::Side::value, last);
  return measured;
}

}  // namespace kvlab::metrics
