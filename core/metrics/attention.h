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

/// Gathers logit_mse, attn_*, out_* per query head and wo_* over all of them. Sequences are pooled.
class AttentionErrors {
 public:
  /// The sample's queries [B, Hq, P, d] and their positions int64 [P]; w_o: [D, Hq·d], undefined
  /// where there is none.
  AttentionErrors(const at::Tensor& q, at::Tensor positions, at::Tensor w_o);

  /// One query head of one sequence at the probes from `first` on, as many as `probes` has.
  void add(int64_t sequence, int64_t q_head, int64_t first, const ProbeErrors& probes);

  /// The metrics, and of each the sums over blocks of positions that it is made of (blocks.h).
  void finish(Arrays& metrics, Arrays& blocks) const;

  /// Squared error and squared norm of the output by probe, [B, Hq, P] each: "out_se", "out_ss".
  Arrays by_probe() const;

 private:
  at::Tensor positions_, w_o_;
  // Made at once: small tensors that stay, made between large ones that go, would keep the heap
  // from using the space of the large ones again.
  at::Tensor logit_, kl_, top1_, cosine_;  // float64 [B, Hq, P]
  // The output and the two error vectors, all heads side by side: float64 [B, P, Hq, d].
  at::Tensor output_, key_error_, value_error_;
};

}  // namespace kvlab::metrics
