#pragma once

#include <ATen/ATen.h>

#include <vector>

#include "calibrate/learn.h"

namespace kvlab::calibrate {

/// OptR's losses of one KV head on some sequences: float32, differentiable in the rotation. Only
/// the last `queries` rows of attention are formed, and only tokens between the exact windows are
/// quantized; all else is computed once.
///
/// rows = (Hq/Hkv)·queries, query heads one after the other; n = L − sink − recent.
class HeadLoss {
 public:
  /// Throws Unsupported where there is no sequence, or one too short for the windows and queries.
  HeadLoss(const LearnInput& input, const std::vector<Sequence>& sequences,
           const LearnSettings& settings, int64_t head);

  size_t sequences() const { return parts_.size(); }

  /// Mean over queries and query heads of KL(p ‖ p_q) + λ·mean(((p_q − p)·V·W_Oᵀ)²), one sequence.
  at::Tensor key(size_t sequence, const at::Tensor& rotation) const;

  /// Values from here on are read with the attention of keys quantized under this rotation (until
  /// then exact).
  void fix_keys(const at::Tensor& rotation);

  /// Mean over queries and query heads of mean((p_q·(Ṽ − V)·W_Oᵀ)²), one sequence.
  at::Tensor value(size_t sequence, const at::Tensor& rotation) const;

 private:
  struct Part {
    at::Tensor q;           // [rows, d], divided by √d
    at::Tensor log_sum;     // [rows, 1] log-sum-exp of the exact scores
    at::Tensor log_p, p;    // [rows, n] exact attention on the tokens between the windows
    at::Tensor mass;        // [rows, 1] of the exact attention outside them
    at::Tensor outside;     // [rows, d] what it reads there, p·V
    at::Tensor output;      // [rows, d] p·V over all tokens
    at::Tensor future;      // [rows, n] bool; undefined where every query is behind the n tokens
    at::Tensor key, value;  // [n, d] between the windows, keys centred
    at::Tensor reading;     // [rows, n] the attention that values are learned with
  };
  class KeyLoss;
  struct Attention;

  Part prepare(const LearnInput& input, const Sequence& sequence, int64_t head) const;
  at::Tensor scores(const Part& part, const at::Tensor& rotation) const;
  static Attention attend(const Part& part, const at::Tensor& scores);
  at::Tensor quantized(const at::Tensor& x, const at::Tensor& rotation,
                       std::optional<double> clip) const;
  at::Tensor times_gram(const at::Tensor& error) const;

  LearnSettings settings_;
  bool key_by_variance_ = false;
  bool value_by_variance_ = false;
  int64_t query_heads_ = 1;
  int64_t width_ = 0;  // of the output that errors are averaged over
  at::Tensor gram_;    // [Hq/Hkv, d, d] = W_O,jᵀ·W_O,j
  std::vector<Part> parts_;
};

/// Loss of every KV head, mean over `sequences`, float64 [Hkv]. rotation: [1 or Hkv, d, d].
at::Tensor key_loss(const LearnInput& input, const std::vector<Sequence>& sequences,
                    const LearnSettings& settings, const at::Tensor& rotation);

/// The same for values; key_rotation undefined: keys exact.
at::Tensor value_loss(const LearnInput& input, const std::vector<Sequence>& sequences,
                      const LearnSettings& settings, const at::Tensor& key_rotation,
                      const at::Tensor& value_rotation);

}  // namespace kvlab::calibrate
