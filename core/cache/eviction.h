#pragma once

#include <ATen/ATen.h>

namespace kvlab::cache {

struct EvictionRule {
  int64_t sink = 4;       // first tokens that stay
  int64_t recent = 1020;  // latest tokens that stay, the own one among them
  int64_t heavy = 0;      // others, by the attention they got
};

/// First step at which each token is no longer read, INT64_MAX where it always is: int64 [T]. At
/// step p tokens 0 … sink − 1 and p − recent + 1 … p are there.
at::Tensor streaming_evictions(int64_t tokens, const EvictionRule& rule);

/// The same where besides these `heavy` more stay: at step p all queries of the KV head attend to
/// the tokens that are there, each token adds its weights to its score, and then the lowest score
/// among those that are neither sink nor recent at step p + 1 goes, as long as more than `heavy`
/// are left; ties drop the earlier token. q [group, T, d] of all positions, k [T, d]: as captured.
at::Tensor heavy_hitter_evictions(const at::Tensor& q, const at::Tensor& k,
                                  const EvictionRule& rule);

}  // namespace kvlab::cache
