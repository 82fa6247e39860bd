#include "metrics/evaluate.h"

#include <c10/core/GradMode.h>

#include <algorithm>

#include "base/nan.h"
#include "metrics/attention.h"
#include "metrics/blocks.h"
#include "metrics/kernel_time.h"
#include "metrics/memory.h"
#include "metrics/norms.h"
#include "metrics/operations.h"
#include "metrics/readback.h"
#include "metrics/residual.h"

namespace kvlab::metrics {
namespace {

using cache::Schedule;

/// What one side's decoded values do wrong, once every whole group of the span is quantized: tokens
/// of a pool have no error, tokens that are gone at the last step do not count.
class SideErrors {
 public:
  SideErrors(bool passthrough, const at::Tensor& captured, const Schedule& schedule,
             bool by_channel)
      : passthrough_(passthrough),
        captured_(captured),
        schedule_(schedule),
        begin_(schedule.windows().begin()) {
    const int64_t batch = captured.size(0);
    const int64_t heads = captured.size(1);
    count_ = passthrough ? 0 : schedule.windows().span_end() - begin_;
    squared_error_ = at::zeros({batch, heads, count_}, at::kDouble);
    squared_ = at::zeros({batch, heads, count_}, at::kDouble);
    codec_norm_ = at::zeros({batch, heads, count_}, at::kDouble);
    there_ = at::zeros({heads}, at::kDouble);
    saturated_ = at::zeros({heads}, at::kDouble);
    nonfinite_ = at::zeros({heads}, at::kDouble);
    if (by_channel && count_ > 0) {
      const int64_t blocks = (count_ + kBlock - 1) / kBlock;
      channels_ = at::zeros({batch, heads, blocks, captured.size(3)}, at::kDouble);
    }
  }

  void add(int64_t sequence, int64_t head, const Decoded& decoded) {
    if (passthrough_) return;
    constexpr int64_t kStretch = 4096;  // tokens, so that temporaries stay within the cache
    const at::Tensor captured = captured_[sequence][head].narrow(0, begin_, count_);
    const at::Tensor gone = gone_tokens(sequence, head);
    const at::Tensor exact_tokens = exact_of(sequence, gone);
    for (int64_t first = 0; first < count_; first += kStretch) {
      const int64_t n = std::min(kStretch, count_ - first);
      const auto part = [&](const at::Tensor& of) {
        return of[sequence][head].narrow(0, first, n);
      };
      const at::Tensor values = decoded.values.narrow(0, first, n);
      const at::Tensor exact = captured.narrow(0, first, n).to(values.scalar_type());
      at::Tensor squared_errors = (values - exact).square_();
      if (exact_tokens.defined()) {
        squared_errors.masked_fill_(exact_tokens.narrow(0, first, n).unsqueeze(1), 0.0);
      }
      part(squared_error_).copy_(squared_errors.sum(-1));
      for (int64_t t = 0; channels_.defined() && t < n; t += kBlock) {
        const at::Tensor block = squared_errors.narrow(0, t, std::min(kBlock, n - t));
        channels_[sequence][head][(first + t) / kBlock].copy_(block.sum(0));
      }
      part(squared_).copy_(exact.square().sum(-1));
      if (gone.defined()) part(squared_).masked_fill_(gone.narrow(0, first, n), 0.0);
      at::Tensor wrong = values.isfinite().logical_not_();
      if (exact_tokens.defined()) {
        wrong.masked_fill_(exact_tokens.narrow(0, first, n).unsqueeze(1), false);
      }
      nonfinite_[head] += wrong.sum().to(at::kDouble);
    }
    codec_norm_[sequence][head].copy_(decoded.codec_norms);
    saturated_[head] += static_cast<double>(decoded.saturated);
    there_[head] += static_cast<double>(count_) - (gone.defined() ? gone.sum().item<double>() : 0);
  }

  /// "k_mse" and "k_nmse", or those of v, with their sums over blocks.
  void errors(const std::string& name, Arrays& arrays, Arrays& blocks) const {
    const int64_t heads = captured_.size(1);
    if (passthrough_) {
      arrays[name + "_mse"] = arrays[name + "_nmse"] = at::zeros({heads}, at::kDouble);
      return;
    }
    if (count_ == 0) {
      arrays[name + "_mse"] = arrays[name + "_nmse"] = at::full({heads}, kNaN, at::kDouble);
      return;
    }
    const at::Tensor error = squared_error_.sum(kSequenceAndToken);
    arrays[name + "_mse"] = error / (there_ * captured_.size(3));
    arrays[name + "_nmse"] = ratio(error, squared_.sum(kSequenceAndToken));
    const at::Tensor positions = at::arange(begin_, begin_ + count_, at::kLong);
    blocks[name + "_mse"] = block_sums(squared_error_, elements(), positions);
    blocks[name + "_nmse"] = block_sums(squared_error_, squared_, positions);
  }

  /// A [B, Hkv, n] array over the span as [B, Hkv, T], NaN outside it and where tokens are gone.
  at::Tensor over_all_tokens(const at::Tensor& array) const {
    at::Tensor all =
        at::full({captured_.size(0), captured_.size(1), captured_.size(2)}, kNaN, at::kDouble);
    all.narrow(2, begin_, count_).copy_(array);
    for (int64_t b = 0; b < all.size(0) && !passthrough_; ++b) {
      for (int64_t head = 0; head < all.size(1); ++head) {
        const at::Tensor gone = gone_tokens(b, head);
        if (gone.defined()) all[b][head].narrow(0, begin_, count_).masked_fill_(gone, kNaN);
      }
    }
    return all;
  }

  /// "k_se" and, where the side is quantized, "k_se_channels", or those of v (evaluate.h).
  void by_token(const std::string& name, Arrays& arrays) const {
    arrays[name + "_se"] = over_all_tokens(squared_error_);
    if (channels_.defined()) arrays[name + "_se_channels"] = channels_;
  }

  bool passthrough() const { return passthrough_; }
  int64_t count() const { return count_; }
  const at::Tensor& squared_error() const { return squared_error_; }
  const at::Tensor& codec_norm() const { return codec_norm_; }
  const at::Tensor& saturated() const { return saturated_; }
  const at::Tensor& nonfinite() const { return nonfinite_; }

 private:
  /// float64 [B, Hkv, n]: how many elements of each token of the span count.
  at::Tensor elements() const {
    at::Tensor counts = at::full_like(squared_error_, static_cast<double>(captured_.size(3)));
    for (int64_t b = 0; b < counts.size(0) && schedule_.evicts(); ++b) {
      for (int64_t head = 0; head < counts.size(1); ++head) {
        counts[b][head].masked_fill_(gone_tokens(b, head), 0.0);
      }
    }
    return counts;
  }

  /// bool [n]: tokens of the span that are gone at the last step; undefined: none ever goes.
  at::Tensor gone_tokens(int64_t sequence, int64_t head) const {
    if (!schedule_.evicts()) return {};
    const at::Tensor last = at::tensor({captured_.size(2) - 1}, at::kLong);
    return schedule_.evicted_at(sequence, head, last)[0].narrow(0, begin_, count_);
  }

  /// bool [n]: tokens without an error.
  at::Tensor exact_of(int64_t sequence, const at::Tensor& gone) const {
    if (!schedule_.protects()) return gone;
    return schedule_.protected_in_span(sequence).narrow(0, begin_, count_);
  }

  bool passthrough_;
  at::Tensor captured_;  // [B, Hkv, T, d]
  const Schedule& schedule_;
  int64_t begin_;
  int64_t count_ = 0;                    // tokens of the span
  static constexpr int64_t kBlock = 32;  // tokens of a row of channels_
  at::Tensor channels_;                  // [B, Hkv, blocks, d], undefined: not asked for
  at::Tensor squared_error_, squared_, codec_norm_;  // [B, Hkv, n]
  at::Tensor there_;                                 // [Hkv], tokens that count
  at::Tensor saturated_, nonfinite_;                 // [Hkv]
};

/// Norms of all captured rows [B, Hkv, T], head by head.
at::Tensor captured_norms(const at::Tensor& x) {
  std::vector<at::Tensor> heads;
  for (int64_t head = 0; head < x.size(1); ++head) {
    heads.push_back(x.select(1, head).to(at::kDouble).square_().sum(-1).sqrt_());
  }
  return at::stack(heads, 1);
}

void norm_metrics(const data::Sample& sample, const SideErrors& key, const Settings& codec,
                  const Schedule& schedule, Arrays& arrays) {
  const at::Tensor norms = captured_norms(sample.k);
  arrays.merge(norm_imbalance(norms));
  if (key.passthrough()) {
    for (const char* name : {"tni_ratio_in", "tni_block_ratio", "tni_bound", "tni_block_mse"}) {
      arrays[name] = at::full({sample.kv_heads()}, kNaN, at::kDouble);
    }
    return;
  }
  arrays["tni_ratio_in"] = norm_ratio(key.codec_norm()).mean(0);
  const auto axis = codec.find("axis");
  const bool per_channel = axis != codec.end() && axis->second == "channel";
  const int64_t block = per_channel ? get_int(codec, "group") : 32;
  arrays.merge(block_imbalance(norms.narrow(2, schedule.windows().begin(), key.count()),
                               key.squared_error(), block, get_int(codec, "bits")));
}

}  // namespace

Measured evaluate(const SampleContext& context, const calibrate::Prepared& method,
                  const method::Recipe& recipe, const std::set<std::string>& measure,
                  const std::string& backend) {
  const c10::NoGradGuard no_grad;
  const data::Sample& sample = context.sample();
  const Schedule schedule(recipe.settings, sample);
  const auto measures = [&](const char* word) { return measure.count(word) > 0; };
  const auto readback = make_readback(backend, context, method, recipe, schedule);
  SideErrors key(method.key.passthrough, sample.k, schedule, measures("tokens"));
  SideErrors value(method.value.passthrough, sample.v, schedule, measures("tokens"));
  AttentionErrors attention_errors(sample.q, sample.positions, sample.w_o);

  const bool attends = measures("attention") || measures("tokens");
  const bool decodes = attends || measures("error") || measures("tni") || measures("residual");
  std::optional<ResidualErrors> residual_errors;
  if (measures("residual")) {
    residual_errors.emplace(sample, method.key, below(recipe.settings, "key.codec."),
                            schedule.windows());
  }
  for (int64_t b = 0; decodes && b < sample.batch(); ++b) {
    for (int64_t head = 0; head < sample.kv_heads(); ++head) {
      const Decoded k = readback->decode(WhichSide::key, b, head);
      const Decoded v = readback->decode(WhichSide::value, b, head);
      key.add(b, head, k);
      value.add(b, head, v);
      if (residual_errors) residual_errors->add(b, head, k);
      if (attends) readback->attend(b, head, k, v, attention_errors);
    }
  }

  Measured measured;
  measured.notes = schedule.notes();
  Arrays& arrays = measured.metrics;
  if (measures("error")) {
    key.errors("k", arrays, measured.blocks);
    value.errors("v", arrays, measured.blocks);
    arrays["saturated"] = key.saturated() + value.saturated();
    arrays["nonfinite"] = key.nonfinite() + value.nonfinite();
    arrays["evicted_tokens"] = at::full(
        {sample.kv_heads()}, static_cast<double>(sample.tokens() - schedule.kept(sample.tokens())),
        at::kDouble);
  }
  if (measures("attention")) attention_errors.finish(arrays, measured.blocks);
  if (measures("tni"))
    norm_metrics(sample, key, below(recipe.settings, "key.codec."), schedule, arrays);
  if (residual_errors) arrays.merge(residual_errors->finish());
  if (measures("operations")) {
    arrays.merge(operations(method.key, recipe.side("key"), schedule.windows(), sample.tokens(),
                            sample.kv_heads(), sample.q_heads(), sample.head_dim()));
  }
  if (measures("memory")) {
    const auto padding = [&](int64_t tokens) { return readback->padding(tokens); };
    arrays.merge(memory(readback->bytes(WhichSide::key), readback->bytes(WhichSide::value), padding,
                        schedule, sample.tokens()));
  }
  if (measures("kernel_time")) {
    const KernelTime time = time_kernels(sample, method, recipe, backend);
    for (const auto& [name, samples] :
         {std::pair{"encode_us", &time.encode}, std::pair{"decode_us", &time.decode}}) {
      arrays[name] = at::scalar_tensor(median(*samples) / 1e3, at::kDouble);
      measured.samples[name] = at::tensor(*samples, at::kDouble);
    }
  }
  if (measures("tokens")) {
    measured.tokens = attention_errors.by_probe();
    measured.tokens["position"] = sample.positions.to(at::kDouble);
    key.by_token("k", measured.tokens);
    value.by_token("v", measured.tokens);
    measured.tokens["k_norm"] = captured_norms(sample.k);
    measured.tokens["v_norm"] = captured_norms(sample.v);
  }
  const int64_t begin = schedule.windows().begin();
  measured.hist_key[0] = measured.hist_value[0] = begin;
  const auto end = [&](Schedule::Side side) {
    int64_t shortest = sample.tokens();
    for (int64_t b = 0; b < sample.batch(); ++b) {
      shortest = std::min(shortest, schedule.boundary(side, b, sample.tokens() - 1));
    }
    return shortest;
  };
  measured.hist_key[1] = end(Schedule::Side::key);
  measured.hist_value[1] = end(Schedule::Side::value);
  return measured;
}

}  // namespace kvlab::metrics
