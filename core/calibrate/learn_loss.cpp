#include "calibrate/learn_loss.h"

#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cmath>
#include <tuple>

#include "base/error.h"
#include "quant/straight_through.h"

namespace kvlab::calibrate {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::tensor_list;

/// Stands for −∞ in masked scores: p·(log p − log p_q) stays 0 there instead of 0·NaN.
constexpr double kMasked = -1e30;

/// Variance over channels of the mean squares of x·R, over the square of their mean: 0 where all
/// channels are equally large.
at::Tensor channel_variance(const at::Tensor& x, const at::Tensor& rotation) {
  const at::Tensor squares = at::mm(x, rotation).square().mean(0);
  const at::Tensor mean = squares.mean();
  return (squares - mean).square().mean() / mean.square();
}

/// Fewest tokens to quantize in a sequence, as OptR's code has it (328 with windows of 64 and 256).
constexpr int64_t kFewest = 8;

at::Tensor head_rotation(const at::Tensor& rotation, int64_t head) {
  return rotation.select(0, rotation.size(0) > 1 ? head : 0).to(at::kFloat);
}

}  // namespace

HeadLoss::HeadLoss(const LearnInput& input, const std::vector<Sequence>& sequences,
                   const LearnSettings& settings, int64_t head)
    : settings_(settings),
      key_by_variance_(input.key_by_variance),
      value_by_variance_(input.value_by_variance) {
  if (sequences.empty())
    throw Unsupported("learning a rotation needs training and held-out tokens");
  const at::Tensor& q = sequences.front().q;
  const int64_t d = q.size(2);
  query_heads_ = q.size(0) / sequences.front().k.size(0);
  if (d % std::min(settings.group, d) != 0) {
    throw Unsupported(
        fmt::format("a learning group of {} channels does not divide the head dimension {}",
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
  const int64_t needed = std::max(settings_.sink + settings_.recent + kFewest, settings_.queries);
  if (length < needed) {
    throw Unsupported(fmt::format(
        "a learning sequence of {} tokens is too short: sink {}, recent {} and {} queries need {}",
        length, settings_.sink, settings_.recent, settings_.queries, needed));
  }
  const int64_t d = sequence.q.size(2);
  const int64_t queries = settings_.queries;
  const int64_t first = settings_.sink;
  Part part;

  const at::Tensor last = sequence.q.slice(0, head * query_heads_, (head + 1) * query_heads_)
                              .slice(1, length - queries);
  const at::Tensor q =
      last.reshape({query_heads_ * queries, d}).to(at::kDouble) / std::sqrt(static_cast<double>(d));
  at::Tensor k = sequence.k.select(0, head).to(at::kDouble);
  if (input.center.defined()) k = k - input.center.select(0, head);
  const at::Tensor v = sequence.v.select(0, head).to(at::kDouble);

  const int64_t end = length - settings_.recent;
  const at::Tensor future =
      at::ones({queries, length}, at::kBool).triu(length - queries + 1).repeat({query_heads_, 1});
  const at::Tensor all = at::mm(q, k.t()).masked_fill_(future, kMasked);
  const at::Tensor log_sum = all.logsumexp(-1, /*keepdim=*/true);
  const at::Tensor log_p = all - log_sum;
  at::Tensor p = log_p.exp();
  part.q = q.to(at::kFloat);
  part.log_sum = log_sum.to(at::kFloat);
  part.log_p = log_p.slice(1, first, end).to(at::kFloat).contiguous();
  part.p = p.slice(1, first, end).to(at::kFloat).contiguous();
  part.output = at::mm(p, v).to(at::kFloat);
  p.slice(1, first, end).zero_();
  part.mass = p.sum(-1, /*keepdim=*/true).to(at::kFloat);
  part.outside = at::mm(p, v).to(at::kFloat);
  if (settings_.recent < queries - 1) part.future = future.slice(1, first, end).contiguous();
  part.key = k.slice(0, first, end).to(at::kFloat);
  part.value = v.slice(0, first, end).to(at::kFloat);
  part.reading = part.p;
  return part;
}

/// Attention where only scores between the windows differ from the exact ones: all others follow
/// from constants.
struct HeadLoss::Attention {
  at::Tensor above;   // [rows, n] scores less the exact log-sum-exp
  at::Tensor p;       // [rows, n]
  at::Tensor factor;  // [rows, 1] of the exact probabilities outside
  at::Tensor log_z;   // [rows, 1] log-sum-exp less the exact one
};

HeadLoss::Attention HeadLoss::attend(const Part& part, const at::Tensor& scores) {
  Attention a;
  a.above = scores - part.log_sum;
  if (part.future.defined()) a.above.masked_fill_(part.future, kMasked);
  const at::Tensor highest = a.above.amax(-1, /*keepdim=*/true).clamp_min_(0.0);
  const at::Tensor weight = (a.above - highest).exp_();
  const at::Tensor other = highest.neg().exp_();
  const at::Tensor z = weight.sum(-1, /*keepdim=*/true) + other * part.mass;
  a.p = weight / z;
  a.factor = other / z;
  a.log_z = z.log() + highest;
  return a;
}

/// The key loss from the scores [rows, n], with its gradient in closed form: autograd would keep
/// and pass a dozen tensors of that size.
class HeadLoss::KeyLoss : public torch::autograd::Function<HeadLoss::KeyLoss> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& scores,
                            const HeadLoss* head, const Part* part) {
    const Attention a = attend(*part, scores);
    const auto rows = static_cast<double>(scores.size(0));
    const at::Tensor divergence =
        ((part->log_p - a.above).mul_(part->p).sum() + a.log_z.sum()) / rows;
    const at::Tensor read = at::mm(a.p, part->value) + part->outside * a.factor;
    const at::Tensor error = read - part->output;
    const double weight = head->settings_.lambda / (rows * static_cast<double>(head->width_));
    const at::Tensor pull = head->times_gram(error) * weight;
    const at::Tensor loss = divergence + (pull * error).sum();
    context->save_for_backward({a.p, part->p, pull, (pull * read).sum(-1, true), part->value});
    return loss;
  }

  static tensor_list backward(AutogradContext* context, tensor_list outputs) {
    const tensor_list saved = context->get_saved_variables();
    const auto& [p_q, p, pull, mean] = std::tie(saved[0], saved[1], saved[2], saved[3]);
    const at::Tensor& value = saved[4];
    // d/ds of the divergence is p_q − p; of a mean under p_q, p_q·(term − mean of the terms).
    const double share = 1.0 / static_cast<double>(p.size(0));
    at::Tensor gradient = at::mm(pull, value.t()).sub_(mean).mul_(2.0).add_(share).mul_(p_q);
    gradient.sub_(p, share);
    return {gradient.mul_(outputs[0]), at::Tensor(), at::Tensor()};
  }
};

at::Tensor HeadLoss::quantized(const at::Tensor& x, const at::Tensor& rotation,
                               std::optional<double> clip) const {
  const at::Tensor rotated = at::mm(x, rotation).unsqueeze(0);
  return quant::straight_through(rotated, settings_.bits, settings_.group, clip).squeeze(0);
}

at::Tensor HeadLoss::scores(const Part& part, const at::Tensor& rotation) const {
  // (q·R)·k̂ in place of q·(k̂·Rᵀ): the rotated keys need not be rotated back.
  const at::Tensor keys = quantized(part.key, rotation, settings_.clip_key);
  return at::mm(at::mm(part.q, rotation), keys.t());
}

at::Tensor HeadLoss::times_gram(const at::Tensor& error) const {
  // ‖E·Wᵀ‖² = Σ E·(WᵀW) ⊙ E: d×d instead of d×D.
  if (!gram_.defined()) return error;
  const at::Tensor of_heads = error.reshape({query_heads_, settings_.queries, error.size(1)});
  return at::bmm(of_heads, gram_).reshape(error.sizes());
}

at::Tensor HeadLoss::key(size_t sequence, const at::Tensor& rotation) const {
  const Part& part = parts_[sequence];
  if (key_by_variance_) return channel_variance(part.key, rotation);
  return KeyLoss::apply(scores(part, rotation), this, &part);
}

void HeadLoss::fix_keys(const at::Tensor& rotation) {
  for (Part& part : parts_) part.reading = attend(part, scores(part, rotation)).p;
}

at::Tensor HeadLoss::value(size_t sequence, const at::Tensor& rotation) const {
  const Part& part = parts_[sequence];
  if (value_by_variance_) return channel_variance(part.value, rotation);
  const at::Tensor decoded = quantized(part.value, rotation, settings_.clip_value);
  const at::Tensor error =
      at::mm(at::mm(part.reading, decoded), rotation.t()) - at::mm(part.reading, part.value);
  return (times_gram(error) * error).sum() / static_cast<double>(error.size(0) * width_);
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
