// OptR: the straight-through quantizer with its gradient, the losses, and what learning comes to.
#include <algorithm>

#include "calibrate/learn.h"
#include "calibrate/learn_loss.h"
#include "peers/parts.h"
#include "quant/straight_through.h"
#include "quant/uniform.h"

namespace peers {
namespace {

using namespace kvlab;
using calibrate::LearnInput;
using calibrate::LearnSettings;
using calibrate::Sequence;

at::Tensor by_head(const at::Tensor& x) { return x.transpose(0, 1).contiguous(); }

/// The codec that the loss's quantizer is.
Settings loss_codec(const Case& vector) {
  Parts parts;
  parts.set("key.codec.bits", vector.integer("bits"))
      .set("key.codec.axis", shared_axis(vector.text("axis")))
      .set("key.codec.group", vector.integer("group"))
      .set("key.codec.grid", vector.text("grid"))
      .set("key.codec.zero", "code_offset")
      .set("key.codec.clip", vector.real("clip_ratio"))
      .set("key.codec.clip_scope", "group")
      .set("key.codec.rounding", "half_up")
      .set("key.codec.least_range", 1e-8)
      .set("key.codec.params", vector.text("scale_dtype"));
  return parts.codec("key");
}

void check_quantizer(const Case& vector, Findings& findings) {
  const at::Tensor x = by_head(vector.tensor("input"));
  const Settings codec = loss_codec(vector);
  const Quantized ours = quantize(codec, x);
  const auto stored = [&](const char* name) { return by_head(vector.tensor(name)); };
  findings.equal("scale", ours.scale, stored("scale"));
  findings.equal("zero", ours.zero, stored("zero"));
  findings.equal("codes", ours.codes, stored("codes"));
  // Stored is u + (q − u), one rounding away from (q − z)·s.
  const at::Tensor values = stored("dequant");
  findings.close("values", ours.values, values, values.abs().amax() * 2e-7);
  if (vector.has("threshold")) {
    const auto spec = quant::UniformSpec::from(codec, x.size(2));
    findings.equal("threshold", quant::clip_threshold(x, spec, {}).squeeze(-1),
                   stored("threshold"));
  }

  // In the loss (code − z)·s is code·s + lo: elements at a boundary may take the next code.
  const auto differentiable = [&](const at::Tensor& t) {
    return quant::straight_through(t, vector.integer("bits"), vector.integer("group"),
                                   vector.real("clip_ratio"));
  };
  const at::Tensor leaf = x.clone().requires_grad_();
  const at::Tensor straight = differentiable(leaf);
  const at::Tensor apart = (straight.detach() - values).abs();
  const at::Tensor moved = apart.gt(1e-5 * values.abs().amax(-1, true) + 1e-6);
  findings.equal("values of the loss", moved.to(at::kFloat), at::zeros_like(values), 2e-4);
  findings.that(apart.le(spread(ours.scale, x) * 1.001 + 1e-6).all().item<bool>(),
                "no value of the loss is more than a step away");
  (straight * stored("grad_weight")).sum().backward();
  findings.that(leaf.grad().isfinite().all().item<bool>(), "gradients are finite");
  if (!vector.has("grad_input")) return;
  const at::Tensor gradient = stored("grad_input");
  const at::Tensor same = moved.logical_not().all(-1, true);
  findings.near("gradient", leaf.grad() * same, gradient * same, 1e-5);
}

struct Full {
  LearnInput input;
  LearnSettings settings;
  at::Tensor key, value;  // learned by the published code
};

std::vector<Sequence> sequences(const Case& vector, const std::string& part) {
  std::vector<Sequence> found;
  for (int i = 0; vector.has("K_" + part + std::to_string(i)); ++i) {
    const auto one = [&](const char* tensor) {
      return by_head(vector.tensor(tensor + part + std::to_string(i)));
    };
    found.push_back({one("Q_"), one("K_"), one("V_")});
  }
  return found;
}

Full load(const Case& vector) {
  Full full;
  LearnSettings& s = full.settings;
  s.steps = vector.integer("steps");
  s.lr = vector.real("lr");
  s.lambda = vector.real("lam");
  s.margin = vector.real("margin");
  s.queries = vector.integer("qwin");
  s.bits = vector.integer("bits");
  s.group = vector.integer("group");
  s.clip_key = vector.real("clip_ratio");
  s.clip_value = vector.real("clip_ratio_v");
  s.sink = vector.integer("prefix");
  s.recent = vector.integer("recent");
  full.input.train = sequences(vector, "calib");
  full.input.held_out = sequences(vector, "held");
  const at::Tensor w_o = vector.tensor("W_O");  // [Hq, D, d]
  full.input.w_o = w_o.transpose(0, 1).reshape({w_o.size(1), -1});
  full.input.center = vector.tensor("mu");
  full.input.base_key = vector.tensor("R_K_base").to(at::kDouble);
  full.input.base_value = vector.tensor("R_V_base").to(at::kDouble);
  full.key = vector.tensor("R_K_learned").to(at::kDouble);
  full.value = vector.tensor("R_V_learned").to(at::kDouble);
  return full;
}

void same_loss(Findings& findings, const std::string& what, const at::Tensor& ours,
               const at::Tensor& stored, double relative = 1e-3) {
  findings.close(what, ours, stored, stored.abs() * relative);
}

void check_losses(const Case& vector, Findings& findings, const Full& full) {
  const LearnInput& in = full.input;
  const LearnSettings& s = full.settings;
  const auto key = [&](const char* name, const LearnInput& input, const auto& on,
                       const at::Tensor& rotation) {
    same_loss(findings, name, calibrate::key_loss(input, on, s, rotation), vector.tensor(name));
  };
  key("K_loss_held_base", in, in.held_out, in.base_key);
  key("K_loss_calib_base", in, in.train, in.base_key);
  key("K_loss_held_final", in, in.held_out, full.key);
  key("K_loss_calib_final", in, in.train, full.key);
  LearnInput uncentred = in;
  uncentred.center = at::Tensor();
  key("K_loss_held_base_no_centering", uncentred, in.held_out, in.base_key);
  const auto value = [&](const char* name, const auto& on, const at::Tensor& rotation) {
    same_loss(findings, name, calibrate::value_loss(in, on, s, full.key, rotation),
              vector.tensor(name));
  };
  value("V_loss_held_base", in.held_out, in.base_value);
  value("V_loss_calib_base", in.train, in.base_value);
  value("V_loss_held_final", in.held_out, full.value);
  value("V_loss_calib_final", in.train, full.value);
}

/// Tensors of the first held-out sequence as attention reads them: exact outside, derotated codes
/// between the windows.
void check_effective(const Case& vector, Findings& findings, const Full& full) {
  const Sequence& held = full.input.held_out.at(0);
  const LearnSettings& s = full.settings;
  const auto effective = [&](const at::Tensor& x, const at::Tensor& rotation, double clip) {
    const at::Tensor wide = x.to(at::kDouble);
    const int64_t n = x.size(1) - s.sink - s.recent;
    const at::Tensor r = rotation.expand({x.size(0), -1, -1});
    const at::Tensor middle = wide.narrow(1, s.sink, n).matmul(r).to(at::kFloat);
    const at::Tensor decoded = quant::straight_through(middle, s.bits, s.group, clip);
    at::Tensor read = wide.clone();
    read.narrow(1, s.sink, n).copy_(decoded.to(at::kDouble).matmul(r.transpose(-1, -2)));
    return read;
  };
  const at::Tensor centred = held.k - full.input.center.unsqueeze(1);
  const auto compare = [&](const char* name, const at::Tensor& ours) {
    // An element at a rounding boundary moves its whole row a little.
    findings.near(name, ours, by_head(vector.tensor(name)), 2e-6, 2e-2);
  };
  compare("K_eff_base_held0", effective(centred, full.input.base_key, *s.clip_key));
  compare("K_eff_learned_held0", effective(centred, full.key, *s.clip_key));
  compare("V_eff_base_held0", effective(held.v, full.input.base_value, *s.clip_value));
}

/// The published optimizer is chaotic: a start moved by 1e-6 ends up to 54 percent elsewhere. Its
/// curve before any update is compared, and where learning ends with the worst of its runs.
void check_learning(const Case& vector, Findings& findings, const Full& full) {
  const calibrate::Learned learned = calibrate::learn(full.input, full.settings, {});
  same_loss(findings, "K_loss_calib_curve at its start", learned.key.curve[0],
            vector.tensor("K_loss_calib_curve")[0], 1e-4);
  // Of the published code's own scatter; nothing of ours can be compared with their later steps.
  const at::Tensor scatter = vector.tensor("K_loss_calib_curve_perturbed_runs").select(1, 0);
  findings.near("curves of moved starts at their start",
                learned.key.curve[0].unsqueeze(0).expand_as(scatter), scatter, 1e-3);
  // Its value curve starts from its own learned keys.
  const auto value_start = calibrate::value_loss(full.input, full.input.train, full.settings,
                                                 full.key, full.input.base_value);
  same_loss(findings, "V_loss_calib_curve at its start", value_start,
            vector.tensor("V_loss_calib_curve")[0], 1e-3);

  const double worst =
      std::max(vector.tensor("K_loss_held_final").mean().item<double>(),
               vector.tensor("K_loss_held_best_perturbed_runs").mean(1).max().item<double>());
  findings.that(learned.key.loss.mean().item<double>() <= 1.1 * worst,
                "the held-out key loss ends at most 1.1 times above the worst published run");
  findings.that(learned.key.loss.le(learned.key.base_loss).all().item<bool>(),
                "no head ends above its base");
  const auto orthogonal = [](const at::Tensor& r) {
    const at::Tensor product = r.matmul(r.transpose(-1, -2));
    return (product - at::eye(r.size(-1), at::kDouble)).abs().max().item<double>() < 1e-6;
  };
  findings.that(orthogonal(learned.key.rotation) && orthogonal(learned.value.rotation),
                "learned rotations are orthogonal");
  // The keep rule on the published code's own numbers.
  for (const char* side : {"K", "V"}) {
    const std::string name = side;
    const at::Tensor base = vector.tensor(name + "_loss_held_base");
    const at::Tensor last = vector.tensor(name + "_loss_held_final");
    const at::Tensor kept = vector.tensor(name + "_keep").to(at::kBool);
    findings.that(last.lt(base * (1.0 - full.settings.margin)).equal(kept),
                  name + ": a head is kept where its held-out loss fell");
  }
  const at::Tensor half_way = vector.tensor("K_loss_held_best_after_40");
  findings.that(half_way.ge(vector.tensor("K_loss_held_final") * (1.0 - 1e-3)).all().item<bool>(),
                "the best held-out loss only falls");
}

}  // namespace

void check_optr(const Case& vector, Findings& findings) {
  if (vector.text("kind") == "quantizer") {
    check_quantizer(vector, findings);
    return;
  }
  const Full full = load(vector);
  at::Tensor sum = at::zeros_like(full.input.center);
  int64_t tokens = 0;
  for (const Sequence& sequence : full.input.train) {
    sum += sequence.k.sum(1);
    tokens += sequence.k.size(1);
  }
  findings.close("mu", sum / static_cast<double>(tokens), full.input.center, at::full({}, 1e-5));
  check_losses(vector, findings, full);
  check_effective(vector, findings, full);
  check_learning(vector, findings, full);
}

}  // namespace peers
