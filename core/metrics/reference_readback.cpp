// The backend `reference`: tensors in float64.
#include <algorithm>

#include "metrics/probe_limits.h"
#include "metrics/readback.h"
#include "quant/parts.h"

namespace kvlab::metrics {
namespace {

using cache::Windows;

/// One side: its transform, codec and the sizes of the codec's buffers.
class Side {
 public:
  Side(const calibrate::PreparedSide& prepared, const Settings& settings,
       const at::Tensor& captured, DType dtype, const Windows& windows)
      : prepared_(prepared),
        captured_(captured),
        begin_(windows.begin()),
        bytes_(captured_bytes(prepared, captured.sizes(), dtype)) {
    if (prepared.passthrough) return;
    count_ = windows.span_end() - begin_;
    bytes_.row_tokens = quant::token_group(below(settings, "codec."));
    scales_ = prepared.transform.scales(span());
    const transform::TokenScale& scale = prepared.transform.token_scale();
    if (scales_.defined())
      bytes_.scale_row = captured.size(0) * scales_.size(1) * size_of(scale.params);
  }

  Decoded decode(int64_t sequence, int64_t head) {
    if (prepared_.passthrough) return {};
    Decoded decoded;
    decoded.values = at::empty({count_, captured_.size(3)}, at::kDouble);
    decoded.codec_norms = at::empty({count_}, at::kDouble);
    // Groups are independent, so a stretch at a time gives the same numbers and keeps temporaries
    // within the cache.
    constexpr int64_t kStretch = 4096;
    const int64_t stretch = bytes_.row_tokens * std::max<int64_t>(1, kStretch / bytes_.row_tokens);
    for (int64_t first = 0; first < count_; first += stretch) {
      decode_stretch(sequence, head, first, std::min(stretch, count_ - first), decoded);
    }
    return decoded;
  }

  SideBytes bytes() const {
    SideBytes bytes = bytes_;
    if (prepared_.passthrough) return bytes;
    if (encoded_tokens_ > 0) {
      // All heads and sequences were encoded, each `count_` tokens.
      bytes.code_row = code_bytes_ / count_;
      bytes.param_row = param_bytes_ / (count_ / bytes.row_tokens);
      return bytes;
    }
    // Nothing was encoded: one row of zeros tells what caches will hold.
    const at::Tensor row =
        at::zeros({captured_.size(1), bytes.row_tokens, captured_.size(3)}, at::kFloat);
    const quant::Encoded encoded = prepared_.codec->encode(row, prepared_.shared);
    bytes.code_row = captured_.size(0) * encoded.code_bytes() / bytes.row_tokens;
    bytes.param_row = captured_.size(0) * encoded.param_bytes();
    return bytes;
  }

 private:
  at::Tensor span() const { return captured_.narrow(2, begin_, count_); }

  /// Tokens [first, first + n) of the span.
  void decode_stretch(int64_t sequence, int64_t head, int64_t first, int64_t n, Decoded& decoded) {
    const at::Tensor x = span()[sequence][head].narrow(0, first, n);
    at::Tensor scale;
    if (scales_.defined())
      scale = scales_[sequence][scales_.size(1) == 1 ? 0 : head].narrow(0, first, n);
    at::Tensor shared;
    if (prepared_.shared.defined()) shared = prepared_.shared.narrow(0, head, 1);
    const at::Tensor entering = prepared_.transform.forward(x, head, scale);
    const quant::Encoded encoded = prepared_.codec->encode(entering.unsqueeze(0), shared);
    code_bytes_ += encoded.code_bytes();
    param_bytes_ += encoded.param_bytes();
    encoded_tokens_ += n;
    decoded.values.narrow(0, first, n)
        .copy_(prepared_.transform.backward(prepared_.codec->decode(encoded)[0], head, scale));
    decoded.codec_norms.narrow(0, first, n)
        .copy_(entering.to(at::kDouble).square_().sum(-1).sqrt_());
    decoded.saturated += encoded.saturated[0].item<int64_t>();
  }

  const calibrate::PreparedSide& prepared_;
  at::Tensor captured_;  // [B, Hkv, T, d]
  int64_t begin_;
  int64_t count_ = 0;  // tokens of the span
  at::Tensor scales_;
  SideBytes bytes_;  // but for the rows that encoding fills
  int64_t code_bytes_ = 0, param_bytes_ = 0, encoded_tokens_ = 0;
};

class ReferenceReadback final : public Readback {
 public:
  ReferenceReadback(const SampleContext& context, const calibrate::Prepared& method,
                    const method::Recipe& recipe, const Windows& windows)
      : context_(context),
        begin_(windows.begin()),
        key_(method.key, recipe.side("key"), sample().k, sample().dtype, windows),
        value_(method.value, recipe.side("value"), sample().v, sample().dtype, windows),
        limits_(windows, sample().positions) {}

  Decoded decode(WhichSide side, int64_t sequence, int64_t head) override {
    return side == WhichSide::key ? key_.decode(sequence, head) : value_.decode(sequence, head);
  }

  /// Some probes at a time: temporaries of [probes, T] stay at a few megabytes.
  void attend(int64_t sequence, int64_t head, const Decoded& key, const Decoded& value,
              AttentionErrors& errors) override {
    constexpr int64_t kWeights = 1 << 19;
    const int64_t probes = sample().positions.size(0);
    const int64_t some = std::max<int64_t>(1, kWeights / sample().tokens());
    attention::HeadCache cache;
    cache.begin = begin_;
    cache.k = sample().k[sequence][head].to(at::kDouble);
    cache.v = sample().v[sequence][head].to(at::kDouble);
    cache.k_read = key.values;
    cache.v_read = value.values;
    for (int64_t j = head * sample().group(); j < (head + 1) * sample().group(); ++j) {
      for (int64_t first = 0; first < probes; first += some) {
        const int64_t count = std::min(some, probes - first);
        const auto part = [&](const at::Tensor& of) { return of.narrow(0, first, count); };
        cache.key_boundary = part(limits_.key);
        cache.value_boundary = part(limits_.value);
        const attention::Exact exact = context_.exact(sequence, j, cache.k, cache.v, first, count);
        errors.add(sequence, j, first,
                   probe_errors(exact, attention::cached_attention(
                                           part(sample().q[sequence][j]).to(at::kDouble), cache,
                                           exact, part(limits_.positions))));
      }
    }
  }

  SideBytes bytes(WhichSide side) const override {
    return side == WhichSide::key ? key_.bytes() : value_.bytes();
  }

  /// The buffers are rows without gaps.
  int64_t padding(int64_t) const override { return 0; }

 private:
  const data::Sample& sample() const { return context_.sample(); }

  const SampleContext& context_;
  int64_t begin_;
  Side key_, value_;
  ProbeLimits limits_;
};

}  // namespace

std::unique_ptr<Readback> make_reference_readback(const SampleContext& context,
                                                  const calibrate::Prepared& method,
                                                  const method::Recipe& recipe,
                                                  const Windows& windows) {
  return std::make_unique<ReferenceReadback>(context, method, recipe, windows);
}

}  // namespace kvlab::metrics
