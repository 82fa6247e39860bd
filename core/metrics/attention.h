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
  /// `q` is the sample's, [B, Hq, P, d]; w_o: [D, Hq·d], undefined where there is none.
  AttentionErrors(const at::Tensor& q, at::Tensor w_o);

  /// One query head of one sequence at the probes from `first` on, as many as `probes` has.
  void add(int64_t sequence, int64_t q_head, int64_t first, const ProbeErrors& probes);

  Arrays finish() const;

  /// Squared error and squared norm of the output by probe, [B, Hq, P] each: "out_se", "out_ss".
  Arrays by_probe() const;

 private:
  at::Tensor w_o_;
  // Each [Hq] float64, sums over sequences (and probes).
  at::Tensor probes_, logit_, kl_, top1_, cosine_;
  at::Tensor error_, key_, value_, norm_;
  // The output and the two error vectors, all heads side by side: float64 [B, P, Hq, d]. Made at
  // once: small tensors that stay, made between large ones that go, would keep the heap from using
  // the space of the large ones again.
  at::Tensor output_, key_error_, value_error_;
};

}  // namespace kvlab::metrics
