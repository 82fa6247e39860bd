#include "calibrate/learn_loss.h"

#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "quant/straight_through.h"

namespace kvlab::calibrate {
namespace {

/// Stands for −∞ in masked scores: p·(log p − log p_q) stays 0 there instead of 0·NaN.
constexpr double kMasked = -1e30;

/// Fewest tokens to quantize in a sequence, as OptR's code has it (328 with windows of 64 and 256).
constexpr int64_t kFewest = 8;

at::Tensor head_rotation(const at::Tensor& rotation, int64_t head) {
  return rotation.select(0, rotation.size(0) > 1 ? head : 0).to(at::kFloat);
}

}  // namespace

HeadLoss::HeadLoss(const LearnInput& input, const std::vector<Sequence>& sequences,
                   const LearnSettings& settings, int64_t head)
    : settings_(settings) {
  if (sequences.empty()) throw Unsupported("learning a rotation needs training and held-out tokens");
  const at::Tensor& q = sequences.front().q;
  const int64_t d = q.size(2);
  query_heads_ = q.size(0) / sequences.front().k.size(0);
  if (d % std::min(settings.group, d) != 0) {
    throw Unsupported(fmt::format("a learning group of {} channels does not divide the head dimension {}",
                                  settings.group, d));
  }
  if (input.w_o.defined()) {
    width_ = input.w_o.size(0);
    const at::Tensor columns =
        input.w_o.slice(1, head * query_heads_ * d, (head + 1) * query_heads_ * d).to(at::kDouble);
    const at::Tensor w = columns.reshape({width_, query_heads_, d}).transpose(0, 1);
    gram_ = at::bmm(w.transpose(1, 2), w).to(at::kFloat);
  } else {
    width_ = d;
  }
  for (const Sequence& sequence : sequences) parts_.push_back(prepare(input, sequence, head));
}

HeadLoss::Part HeadLoss::prepare(const LearnInput& input, const Sequence& sequence,
                                 int64_t head) const {
  const int64_t length = sequence.k.size(1);
  const int64_t needed =
      std::max(settings_.sink + settings_.recent + kFewest, settings_.queries);
  if (length < needed) {
    throw Unsupported(fmt::format(
        "a learning sequence of {} tokens is too short: sink {}, recent {} and {} queries need {}",
        length, settings_.sink, settings_.recent, settings_.queries, needed));
  }
  const int64_t d = sequence.q.size(2);
  const int64_t queries = settings_.queries;
  Part part;
  part.first = settings_.sink;

  const at::Tensor last = sequence.q.slice(0, head * query_heads_, (head + 1) * query_heads_)
                              .slice(1, length - queries);
  const at::Tensor q = last.reshape({query_heads_ * queries, d}).to(at::kDouble) /
                       std::sqrt(static_cast<double>(d));
  at::Tensor k = sequence.k.select(0, head).to(at::kDouble);
  if (input.center.defined()) k = k - input.center.select(0, head);
  const at::Tensor v = sequence.v.select(0, head).to(at::kDouble);

  const at::Tensor future = at::ones({queries, length}, at::kBool)
                                .triu(length - queries + 1)
                                .repeat({query_heads_, 1});
  const at::Tensor scores = at::mm(q, k.t()).masked_fill_(future, kMasked);
  const at::Tensor log_p = scores.log_softmax(-1);
  part.q = q.to(at::kFloat);
  part.scores = scores.to(at::kFloat);
  part.log_p = log_p.to(at::kFloat);
  part.p = log_p.exp().to(at::kFloat);
  part.key = k.slice(0, part.first, length - settings_.recent).to(at::kFloat);
  part.v = v.to(at::kFloat).contiguous();
  part.output = at::mm(log_p.exp(), v).to(at::kFloat);
  part.reading = part.p.slice(1, part.first, length - settings_.recent);
  return part;
}

at::Tensor HeadLoss::quantized(const at::Tensor& x, const at::Tensor& rotation, double clip) const {
  const at::Tensor rotated = at::mm(x, rotation).unsqueeze(0);
  return quant::straight_through(rotated, settings_.bits, settings_.group, clip).squeeze(0);
}

at::Tensor HeadLoss::log_attention(const Part& part, const at::Tensor& rotation) const {
  // (q·R)·k̂ in place of q·(k̂·Rᵀ): there are fewer queries than keys.
  const at::Tensor codes = quantized(part.key, rotation, settings_.clip_key);
  const at::Tensor middle = at::mm(at::mm(part.q, rotation), codes.t());
  const int64_t end = part.first + part.key.size(0);
  const at::Tensor masked = part.scores.slice(1, part.first, end).le(kMasked / 2);
  return at::cat({part.scores.slice(1, 0, part.first), middle.masked_fill(masked, kMasked),
                  part.scores.slice(1, end)},
                 1)
      .log_softmax(-1);
}

at::Tensor HeadLoss::projected(const at::Tensor& error) const {
  // ‖E·Wᵀ‖² = Σ E·(WᵀW) ⊙ E: d×d instead of d×D.
  if (!gram_.defined()) return error.square().mean();
  const at::Tensor e = error.reshape({query_heads_, settings_.queries, error.size(1)});
  return (at::bmm(e, gram_) * e).sum() / static_cast<double>(error.size(0) * width_);
}

at::Tensor HeadLoss::key(size_t sequence, const at::Tensor& rotation) const {
  const Part& part = parts_[sequence];
  const at::Tensor log_q = log_attention(part, rotation);
  const at::Tensor divergence =
      (part.p * (part.log_p - log_q)).sum() / static_cast<double>(part.p.size(0));
  return divergence + projected(at::mm(log_q.exp(), part.v) - part.output) * settings_.lambda;
}

void HeadLoss::fix_keys(const at::Tensor& rotation) {
  for (Part& part : parts_) {
    const at::Tensor p = log_attention(part, rotation).exp();
    part.reading = p.slice(1, part.first, part.first + part.key.size(0)).contiguous();
  }
}

at::Tensor HeadLoss::value(size_t sequence, const at::Tensor& rotation) const {
  const Part& part = parts_[sequence];
  const at::Tensor v = part.v.slice(0, part.first, part.first + part.key.size(0));
  const at::Tensor read = at::mm(part.reading, quantized(v, rotation, settings_.clip_value));
  return projected(at::mm(read, rotation.t()) - at::mm(part.reading, v));
}

at::Tensor key_loss(const LearnInput& input, const std::vector<Sequence>& sequences,
                    const LearnSettings& settings, const at::Tensor& rotation) {
  const c10::NoGradGuard no_grad;
  std::vector<double> losses;
  for (int64_t head = 0; head < sequences.at(0).k.size(0); ++head) {
    const HeadLoss loss(input, sequences, settings, head);
    const at::Tensor r = head_rotation(rotation, head);
    double sum = 0.0;
    for (size_t i = 0; i < loss.sequences(); ++i) sum += loss.key(i, r).item<double>();
    losses.push_back(sum / static_cast<double>(loss.sequences()));
  }
  return at::tensor(losses, at::kDouble);
}

at::Tensor value_loss(const LearnInput& input, const std::vector<Sequence>& sequences,
                      const LearnSettings& settings, const at::Tensor& key_rotation,
                      const at::Tensor& value_rotation) {
  const c10::NoGradGuard no_grad;
  std::vector<double> losses;
  for (int64_t head = 0; head < sequences.at(0).k.size(0); ++head) {
    HeadLoss loss(input, sequences, settings, head);
    if (key_rotation.defined()) loss.fix_keys(head_rotation(key_rotation, head));
    const at::Tensor r = head_rotation(value_rotation, head);
    double sum = 0.0;
    for (size_t i = 0; i < loss.sequences(); ++i) sum += loss.value(i, r).item<double>();
    losses.push_back(sum / static_cast<double>(loss.sequences()));
  }
  return at::tensor(losses, at::kDouble);
}

}  // namespace kvlab::calibrate
