#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <optional>

#include "base/part.h"

namespace kvlab::calibrate {

/// Settings of learning, from the recipe's `calibrate.` keys (methods.md section 8 has OptR's own
/// values).
struct LearnSettings {
  int64_t tokens = 1024;  // of the calibration sample, training and held-out parts together
  int64_t steps = 80;
  double lr = 0.02;
  double lambda = 1.0;  // weight of the post-W_O error beside the KL
  double margin = 0.0;  // a head is kept where held-out loss < base·(1 − margin)
  int64_t check_every = 20;
  int64_t queries = 64;  // the last positions of each sequence
  int64_t bits = 2;
  int64_t group = 128;
  std::optional<double> clip_key = 0.96;  // nothing: no clipping
  std::optional<double> clip_value = 0.92;
  int64_t sink = 64;     // tokens kept exact at the start of each sequence
  int64_t recent = 256;  // and at its end

  static LearnSettings from(const Settings& calibrate);
};

/// One sequence of float32 tensors after RoPE: q [Hq, L, d] of all positions, k and v [Hkv, L, d].
struct Sequence {
  at::Tensor q, k, v;
};

struct LearnInput {
  std::vector<Sequence> train;
  std::vector<Sequence> held_out;
  at::Tensor w_o;     // [D, Hq·d] float32; undefined: the error before W_O is used
  at::Tensor center;  // [Hkv, d] float32, or undefined
  at::Tensor
      base_key;  // float64 [1 or Hkv, d, d]; undefined: keys are not learned (and taken exact)
  at::Tensor base_value;  // likewise for values
  // Learned by the inequality of the channels' mean squares in place of the attention's error.
  bool key_by_variance = false;
  bool value_by_variance = false;
};

/// What learning leaves behind for one side. Losses are per KV head on the held-out sequences.
struct LearnedSide {
  at::Tensor
      rotation;  // float64 [Hkv, d, d], orthogonal to 1e-6; the base where a head did not improve
  at::Tensor base_loss;  // float64 [Hkv]
  at::Tensor loss;       // float64 [Hkv], never above base_loss
  at::Tensor kept;       // bool [Hkv]: the learned rotation replaced the base
  at::Tensor curve;      // float64 [steps, Hkv], training loss before each update
};

struct Learned {
  LearnedSide key, value;  // rotation undefined where that side was not learned
};

/// Called after each step with steps done and steps in all; may throw to stop.
using LearnProgress = std::function<void(int64_t done, int64_t all)>;

/// Learns R = R_base·expm(A − Aᵀ) per KV head with Adam, keys first, then values with the keys at
/// their optimum (arXiv:2608.02691; methods.md section 8). Throws Unsupported where the sequences
/// are too short for the windows.
Learned learn(const LearnInput& input, const LearnSettings& settings,
              const LearnProgress& progress);

}  // namespace kvlab::calibrate
