#include "calibrate/learn.h"

#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "base/error.h"
#include "calibrate/heads.h"
#include "calibrate/learn_loss.h"
#include "quant/parts.h"

namespace kvlab::calibrate {
namespace {

enum class Side { key, value };

/// Adam with torch.optim's defaults on one tensor.
class Adam {
 public:
  Adam(const at::Tensor& parameter, double lr)
      : lr_(lr), mean_(at::zeros_like(parameter)), square_(at::zeros_like(parameter)) {}

  void step(at::Tensor& parameter, const at::Tensor& gradient) {
    constexpr double kMean = 0.9;
    constexpr double kSquare = 0.999;
    ++steps_;
    mean_.mul_(kMean).add_(gradient, 1.0 - kMean);
    square_.mul_(kSquare).addcmul_(gradient, gradient, 1.0 - kSquare);
    const double mean_scale = 1.0 - std::pow(kMean, steps_);
    const double square_scale = std::sqrt(1.0 - std::pow(kSquare, steps_));
    const at::Tensor root = (square_.sqrt() / square_scale).add_(1e-8);
    parameter.addcdiv_(mean_, root, -lr_ / mean_scale);
  }

 private:
  double lr_;
  int steps_ = 0;
  at::Tensor mean_, square_;
};

/// Learning of one side of one KV head.
class HeadLearner {
 public:
  HeadLearner(const HeadLoss& train, const HeadLoss& held_out, Side side, at::Tensor base,
              const LearnSettings& settings)
      : train_(train),
        held_out_(held_out),
        side_(side),
        base_(std::move(base)),
        generator_(at::zeros_like(base_, at::kFloat)),
        adam_(generator_, settings.lr),
        best_(base_) {
    const c10::NoGradGuard no_grad;
    base_loss_ = loss_ = held_out_loss(base_);
    limit_ = base_loss_ * (1.0 - settings.margin);
  }

  /// One update; returns the training loss before it.
  double step() {
    const c10::AutoGradMode with_grad(true);
    at::Tensor generator = generator_.detach().requires_grad_();
    const at::Tensor rotation =
        at::mm(base_.to(at::kFloat), (generator - generator.t()).matrix_exp());
    // A leaf between rotation and losses: each sequence's graph is freed before the next is built.
    at::Tensor leaf = rotation.detach().requires_grad_();
    const auto count = static_cast<double>(train_.sequences());
    double sum = 0.0;
    for (size_t i = 0; i < train_.sequences(); ++i) {
      const at::Tensor loss = of(train_, i, leaf);
      loss.backward();
      sum += loss.item<double>();
    }
    rotation.backward(leaf.grad() / count);
    const c10::NoGradGuard no_grad;
    adam_.step(generator_, generator.grad());
    return sum / count;
  }

  /// Keeps the present rotation where it is the best so far on the held-out sequences.
  void check() {
    const c10::NoGradGuard no_grad;
    const at::Tensor candidate = present();
    const double loss = held_out_loss(candidate);
    if (!(loss < loss_ && loss < limit_)) return;
    best_ = candidate;
    loss_ = loss;
    kept_ = true;
  }

  const at::Tensor& rotation() const { return best_; }
  double base_loss() const { return base_loss_; }
  double loss() const { return loss_; }
  bool kept() const { return kept_; }

 private:
  at::Tensor of(const HeadLoss& loss, size_t sequence, const at::Tensor& rotation) const {
    return side_ == Side::key ? loss.key(sequence, rotation) : loss.value(sequence, rotation);
  }

  double held_out_loss(const at::Tensor& rotation) const {
    const at::Tensor r = rotation.to(at::kFloat);
    double sum = 0.0;
    for (size_t i = 0; i < held_out_.sequences(); ++i) sum += of(held_out_, i, r).item<double>();
    return sum / static_cast<double>(held_out_.sequences());
  }

  /// In float64, and pulled to the nearest orthogonal matrix by a Newton–Schulz step: the error of
  /// a base that was stored in float32 is squared.
  at::Tensor present() const {
    const at::Tensor generator = generator_.to(at::kDouble);
    const at::Tensor r = at::mm(base_, (generator - generator.t()).matrix_exp());
    const at::Tensor identity = at::eye(r.size(0), r.options());
    return at::mm(r, identity * 1.5 - at::mm(r.t(), r) * 0.5);
  }

  const HeadLoss& train_;
  const HeadLoss& held_out_;
  Side side_;
  at::Tensor base_;       // float64 [d, d]
  at::Tensor generator_;  // A, float32 [d, d]
  Adam adam_;
  at::Tensor best_;
  double base_loss_ = 0.0;
  double loss_ = 0.0;
  double limit_ = 0.0;
  bool kept_ = false;
};

/// One object a head, made by for_each_head.
template <class T>
using PerHead = std::vector<std::unique_ptr<T>>;

LearnedSide learn_side(const PerHead<HeadLoss>& train, const PerHead<HeadLoss>& held_out, Side side,
                       const at::Tensor& base, const LearnSettings& settings,
                       const std::function<void()>& after_step) {
  const auto heads = static_cast<int64_t>(train.size());
  PerHead<HeadLearner> learners(train.size());
  for_each_head(heads, [&](int64_t head) {
    const auto i = static_cast<size_t>(head);
    const at::Tensor of_head = base.select(0, base.size(0) > 1 ? head : 0).to(at::kDouble);
    learners[i] = std::make_unique<HeadLearner>(*train[i], *held_out[i], side, of_head, settings);
  });

  LearnedSide learned;
  learned.curve = at::empty({settings.steps, heads}, at::kDouble);
  for (int64_t step = 0; step < settings.steps; ++step) {
    const bool check = (step + 1) % settings.check_every == 0 || step + 1 == settings.steps;
    double* const losses = learned.curve.data_ptr<double>() + step * heads;
    for_each_head(heads, [&](int64_t head) {
      HeadLearner& learner = *learners[static_cast<size_t>(head)];
      losses[head] = learner.step();
      if (check) learner.check();
    });
    after_step();
  }

  std::vector<at::Tensor> rotations;
  learned.base_loss = at::empty({heads}, at::kDouble);
  learned.loss = at::empty({heads}, at::kDouble);
  learned.kept = at::empty({heads}, at::kBool);
  for (int64_t head = 0; head < heads; ++head) {
    const HeadLearner& learner = *learners[static_cast<size_t>(head)];
    rotations.push_back(learner.rotation());
    learned.base_loss[head] = learner.base_loss();
    learned.loss[head] = learner.loss();
    learned.kept[head] = learner.kept();
  }
  learned.rotation = at::stack(rotations);
  return learned;
}

}  // namespace

LearnSettings LearnSettings::from(const Settings& calibrate) {
  // A ratio may be `none`, like a codec's.
  const auto clip = [&](const char* key) {
    return quant::clip_ratio({{"clip", calibrate.at(key)}});
  };
  LearnSettings settings;
  settings.tokens = get_int(calibrate, "tokens");
  settings.steps = get_int(calibrate, "steps");
  settings.lr = get_real(calibrate, "lr");
  settings.lambda = get_real(calibrate, "lambda");
  settings.margin = get_real(calibrate, "margin");
  settings.check_every = get_int(calibrate, "check_every");
  settings.queries = get_int(calibrate, "queries");
  settings.bits = get_int(calibrate, "bits");
  settings.group = get_int(calibrate, "group");
  settings.clip_key = clip("clip_key");
  settings.clip_value = clip("clip_value");
  settings.sink = get_int(calibrate, "sink");
  settings.recent = get_int(calibrate, "recent");
  return settings;
}

Learned learn(const LearnInput& input, const LearnSettings& settings,
              const LearnProgress& progress) {
  if (input.train.empty() || input.held_out.empty()) {
    throw Unsupported("learning a rotation needs at least one training and one held-out sequence");
  }
  const int64_t heads = input.train.front().k.size(0);
  PerHead<HeadLoss> train(static_cast<size_t>(heads));
  PerHead<HeadLoss> held_out(static_cast<size_t>(heads));
  for_each_head(heads, [&](int64_t head) {
    const auto i = static_cast<size_t>(head);
    train[i] = std::make_unique<HeadLoss>(input, input.train, settings, head);
    held_out[i] = std::make_unique<HeadLoss>(input, input.held_out, settings, head);
  });

  const int64_t sides = (input.base_key.defined() ? 1 : 0) + (input.base_value.defined() ? 1 : 0);
  int64_t done = 0;
  const auto after_step = [&] {
    ++done;
    if (progress) progress(done, sides * settings.steps);
  };

  Learned learned;
  if (input.base_key.defined()) {
    learned.key = learn_side(train, held_out, Side::key, input.base_key, settings, after_step);
  }
  if (!input.base_value.defined()) return learned;
  if (learned.key.rotation.defined()) {
    for_each_head(heads, [&](int64_t head) {
      const c10::NoGradGuard no_grad;
      const auto i = static_cast<size_t>(head);
      const at::Tensor rotation = learned.key.rotation.select(0, head).to(at::kFloat);
      train[i]->fix_keys(rotation);
      held_out[i]->fix_keys(rotation);
    });
  }
  learned.value = learn_side(train, held_out, Side::value, input.base_value, settings, after_step);
  return learned;
}

}  // namespace kvlab::calibrate
