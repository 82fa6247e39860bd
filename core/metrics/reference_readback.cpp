// The backend `reference`: tensors in float64.
#include <algorithm>
#include <limits>
#include <utility>

#include "data/pre_rope.h"
#include "metrics/probe_limits.h"
#include "metrics/readback.h"
#include "transform/parts.h"

namespace kvlab::metrics {
namespace {

/// One side: its transform, codec and the sizes of the codec's buffers.
class Side {
 public:
  Side(const calibrate::PreparedSide& prepared, const Settings& settings,
       const data::Sample& sample, const at::Tensor& captured, const cache::Schedule& schedule)
      : prepared_(prepared),
        schedule_(schedule),
        captured_(captured),
        begin_(schedule.windows().begin()),
        bytes_(captured_bytes(prepared, captured.sizes(), sample.dtype)) {
    if (prepared.passthrough) return;
    count_ = schedule.windows().span_end() - begin_;
    row_tokens_ = transform::token_group(settings);
    if (prepared.pre_rope) {
      data::PreRope found = data::keys_before_rope(sample);
      captured_ = found.keys;
      rope_ = std::move(found.rope);
    }
    // Where nothing is quantized, all tokens together tell what those of longer caches will take.
    tokens_ = count_ > 0 ? captured_.narrow(2, begin_, count_) : captured_;
    scales_ = prepared.transform.scales(tokens_);
    code_bytes_ = at::zeros({tokens_.size(0), tokens_.size(2)}, at::kLong);
  }

  /// Heads that are transformed together are decoded together and kept until others are asked for.
  Decoded decode(int64_t sequence, int64_t head) {
    if (prepared_.passthrough) return {};
    const int64_t together = prepared_.transform.heads();
    const int64_t first = head / together * together;
    const auto index = static_cast<size_t>(head - first);
    const bool here =
        sequence == sequence_ && first == first_head_ && decoded_[index].values.defined();
    if (!here) decode_heads(sequence, first, together);
    sequence_ = sequence;
    first_head_ = first;
    return std::exchange(decoded_[index], Decoded{});
  }

  SideBytes bytes() {
    if (prepared_.passthrough) return bytes_;
    // One row of zeros has the size of every other, where data do not decide it.
    const at::Tensor row = at::zeros({tokens_.size(1), row_tokens_, tokens_.size(3)}, at::kFloat);
    const quant::Encoded encoded = prepared_.codec->encode(row, prepared_.shared);
    bytes_.codes = encoded.token_bytes.defined()
                       ? Growth::of_tokens(code_bytes() * 8)
                       : Growth{.row_tokens = row_tokens_, .row_bits = encoded.code_bytes() * 8};
    bytes_.params = {.row_tokens = row_tokens_, .row_bits = encoded.param_bytes() * 8};
    if (scales_.defined()) {
      bytes_.scales = Growth::of_tokens(prepared_.transform.token_scale().bits(scales_).sum(1));
    }
    return bytes_;
  }

 private:
  void decode_heads(int64_t sequence, int64_t first_head, int64_t together) {
    decoded_.assign(static_cast<size_t>(together), Decoded{});
    for (Decoded& one : decoded_) {
      one.values = at::empty({count_, captured_.size(3)}, at::kDouble);
      one.codec_norms = at::empty({count_}, at::kDouble);
    }
    // Groups are independent, so a stretch at a time gives the same numbers and keeps temporaries
    // within the cache.
    constexpr int64_t kStretch = 4096;
    const int64_t rows = std::max<int64_t>(1, kStretch / (row_tokens_ * together));
    const int64_t stretch = row_tokens_ * rows;
    for (int64_t first = 0; first < count_; first += stretch) {
      decode_stretch(sequence, first_head, together, first, std::min(stretch, count_ - first));
    }
  }

  /// Some tokens of some heads, encoded.
  struct Stretch {
    at::Tensor scale, entering;
    quant::Encoded encoded;
  };

  /// Tokens [first, first + n) of heads [head, head + together).
  Stretch encode(int64_t sequence, int64_t head, int64_t together, int64_t first, int64_t n) {
    Stretch made;
    const at::Tensor x = tokens_[sequence].narrow(0, head, together).narrow(1, first, n);
    if (scales_.defined()) {
      const bool one = scales_.size(1) == 1;
      made.scale = scales_[sequence].narrow(0, one ? 0 : head, one ? 1 : together);
      made.scale = made.scale.narrow(1, first, n);
    }
    at::Tensor shared;
    if (prepared_.shared.defined()) shared = prepared_.shared.narrow(0, head, together);
    made.entering = prepared_.transform.forward(x, head, made.scale);
    if (schedule_.protects()) made.entering = shielded(made.entering, sequence, first);
    made.encoded = prepared_.codec->encode(made.entering, shared);
    if (made.encoded.token_bytes.defined()) {
      code_bytes_[sequence].narrow(0, first, n) += made.encoded.token_bytes;
      are_counted_ = true;
    }
    return made;
  }

  /// Bytes of each token's codes, int64 [B, n].
  const at::Tensor& code_bytes() {
    const int64_t together = prepared_.transform.heads();
    if (are_counted_) return code_bytes_;
    for (int64_t b = 0; b < tokens_.size(0); ++b) {
      for (int64_t head = 0; head < tokens_.size(1); head += together) {
        encode(b, head, together, 0, tokens_.size(2));
      }
    }
    return code_bytes_;
  }

  /// Tokens [first, first + n) of the span of heads [head, head + together).
  void decode_stretch(int64_t sequence, int64_t head, int64_t together, int64_t first, int64_t n) {
    const auto [scale, entering, encoded] = encode(sequence, head, together, first, n);
    at::Tensor values = prepared_.transform.backward(prepared_.codec->decode(encoded), head, scale);
    if (prepared_.pre_rope) values = rope_.turned(values, begin_ + first);
    const at::Tensor norms = entering.to(at::kDouble).square_().sum(-1).sqrt_();
    for (int64_t i = 0; i < together; ++i) {
      Decoded& one = decoded_[static_cast<size_t>(i)];
      one.values.narrow(0, first, n).copy_(values[i]);
      one.codec_norms.narrow(0, first, n).copy_(norms[i]);
      one.saturated += encoded.saturated[i].item<int64_t>();
    }
  }

  /// Tokens that are in the pool when their group is quantized, moved into the range of the others
  /// [heads, n, d]: they leave the group's parameters alone and get the nearest codes.
  at::Tensor shielded(const at::Tensor& entering, int64_t sequence, int64_t first) const {
    const int64_t group = row_tokens_;
    const int64_t n = entering.size(1);
    if (group == 1) return entering;
    const at::Tensor out =
        schedule_.excluded(sequence).narrow(0, begin_ + first, n).view({n / group, group, 1});
    if (!out.any().item<bool>()) return entering;
    constexpr float kFar = std::numeric_limits<float>::infinity();
    const at::Tensor groups = entering.unflatten(1, {n / group, group});
    const at::Tensor low = groups.masked_fill(out, kFar).amin(2, true);
    const at::Tensor high = groups.masked_fill(out, -kFar).amax(2, true);
    const at::Tensor moved = at::minimum(at::maximum(groups, low), high);
    // A group of pool members alone has no others.
    return at::where(out.logical_and(low.le(high)), moved, groups).flatten(1, 2);
  }

  const calibrate::PreparedSide& prepared_;
  const cache::Schedule& schedule_;
  at::Tensor captured_;  // [B, Hkv, T, d], before RoPE where the side is quantized there
  data::Rope rope_;
  int64_t begin_;
  int64_t count_ = 0;  // tokens of the span
  int64_t row_tokens_ = 1;
  at::Tensor tokens_;  // those of the span; all where it is empty
  at::Tensor scales_;  // of tokens_
  SideBytes bytes_;    // but for what grows
  at::Tensor code_bytes_;
  bool are_counted_ = false;
  int64_t sequence_ = -1, first_head_ = -1;
  std::vector<Decoded> decoded_;  // of the heads from first_head_ on
};

class ReferenceReadback final : public Readback {
 public:
  ReferenceReadback(const SampleContext& context, const calibrate::Prepared& method,
                    const method::Recipe& recipe, const cache::Schedule& schedule)
      : context_(context),
        schedule_(schedule),
        key_(method.key, recipe.side("key"), sample(), sample().k, schedule),
        value_(method.value, recipe.side("value"), sample(), sample().v, schedule) {}

  Decoded decode(WhichSide side, int64_t sequence, int64_t head) override {
    return side == WhichSide::key ? key_.decode(sequence, head) : value_.decode(sequence, head);
  }

  /// Some probes at a time: temporaries of [probes, T] stay at a few megabytes.
  void attend(int64_t sequence, int64_t head, const Decoded& key, const Decoded& value,
              AttentionErrors& errors) override {
    constexpr int64_t kWeights = 1 << 19;
    const int64_t probes = sample().positions.size(0);
    const int64_t some = std::max<int64_t>(1, kWeights / sample().tokens());
    const ProbeLimits limits(schedule_, sequence, sample().positions);
    attention::HeadCache cache;
    cache.begin = schedule_.windows().begin();
    cache.k = sample().k[sequence][head].to(at::kDouble);
    cache.v = sample().v[sequence][head].to(at::kDouble);
    cache.k_read = key.values;
    cache.v_read = value.values;
    for (int64_t j = head * sample().group(); j < (head + 1) * sample().group(); ++j) {
      for (int64_t first = 0; first < probes; first += some) {
        const int64_t count = std::min(some, probes - first);
        const auto part = [&](const at::Tensor& of) { return of.narrow(0, first, count); };
        cache.key_boundary = part(limits.key);
        cache.value_boundary = part(limits.value);
        const at::Tensor positions = part(limits.positions);
        if (schedule_.protects() && key.values.defined()) {
          cache.held = schedule_.protected_at(sequence, positions)
                           .narrow(1, cache.begin, key.values.size(0));
        }
        if (schedule_.evicts()) cache.evicted = schedule_.evicted_at(sequence, head, positions);
        const attention::Exact exact = context_.exact(sequence, j, cache.k, cache.v, first, count);
        errors.add(sequence, j, first,
                   probe_errors(exact, attention::cached_attention(
                                           part(sample().q[sequence][j]).to(at::kDouble), cache,
                                           exact, positions)));
      }
    }
  }

  SideBytes bytes(WhichSide side) override {
    return side == WhichSide::key ? key_.bytes() : value_.bytes();
  }

  /// The buffers are rows without gaps.
  int64_t padding(int64_t) const override { return 0; }

 private:
  const data::Sample& sample() const { return context_.sample(); }

  const SampleContext& context_;
  const cache::Schedule& schedule_;
  Side key_, value_;
};

}  // namespace

std::unique_ptr<Readback> make_reference_readback(const SampleContext& context,
                                                  const calibrate::Prepared& method,
                                                  const method::Recipe& recipe,
                                                  const cache::Schedule& schedule) {
  return std::make_unique<ReferenceReadback>(context, method, recipe, schedule);
}

}  // namespace kvlab::metrics
