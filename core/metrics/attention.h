#pragma once

#include "attention/reference.h"
#include "metrics/measured.h"

namespace kvlab::metrics {

/// What attention through a cache did to some probes of one query head; float64.
struct ProbeErrors {
  at::Tensor logit_mse, kl, top1;             // [P]; top1: 1 where the strongest key is the same
  at::Tensor output, key_error, value_error;  // [P, d]: O, (P̂ − P)·V and P̂·(V̂ − V)
};

ProbeErrors probe_errors(const attention::Exact& exact, const attention::Read& read);

/// Sums up logit_mse, attn_*, out_* per query head and wo_* over all of them. Sequences are pooled.
class AttentionErrors {
 public:
  /// w_o: [D, Hq·d], undefined where there is none.
  AttentionErrors(int64_t sequences, int64_t q_heads, at::Tensor w_o);

  /// Some probes of one query head of one sequence; those of one head come in order.
  void add(int64_t sequence, int64_t q_head, const ProbeErrors& probes);

  Arrays finish() const;

  /// Squared error and squared norm of the output by probe, [B, Hq, P] each: "out_se", "out_ss".
  Arrays by_probe() const;

 private:
  int64_t q_heads_;
  at::Tensor w_o_;
  // Each [Hq] float64, sums over sequences (and probes).
  at::Tensor probes_, logit_, kl_, top1_, cosine_;
  at::Tensor error_, key_, value_, norm_;
  // Outputs and the two error vectors of each sequence and query head, [P, d] in pieces.
  struct Vectors {
    std::vector<at::Tensor> output, key_error, value_error;
  };
  std::vector<std::vector<Vectors>> vectors_;
};

}  // namespace kvlab::metrics
