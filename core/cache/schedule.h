#pragma once

#include <ATen/ATen.h>

#include <string>
#include <vector>

#include "cache/windows.h"
#include "data/sample.h"

namespace kvlab::cache {

/// What a cache of this sample holds at each step: the windows' rule, and what depends on the
/// tokens themselves: blocks that leave the window late (window.flush: dynamic), tokens of the
/// history that stay in full precision (protect), tokens that are dropped (evict). At step p
/// nothing but tokens 0..p has been looked at.
class Schedule {
 public:
  using Side = Windows::Side;

  /// recipe: a whole recipe's flat settings. Throws Unsupported where the sample lacks what a rule
  /// looks at.
  Schedule(const Settings& recipe, const data::Sample& sample);

  const Windows& windows() const { return windows_; }

  /// At step p tokens [begin, boundary) of a sequence are read quantized.
  int64_t boundary(Side side, int64_t sequence, int64_t p) const;
  /// The same at the last step of a cache of `tokens` tokens, which may be more than the sample
  /// has: then a dynamic window is as large as it was on average over the sample's last half.
  int64_t boundary_at_length(Side side, int64_t sequence, int64_t tokens) const;

  bool protects() const { return pool_tokens_ > 0; }
  /// Tokens of a sequence's pool when its history has `history` tokens.
  int64_t pool_size(int64_t history) const;
  /// bool [T]: tokens that do not shape the parameters of their group: they were in the pool when
  /// it was quantized.
  at::Tensor excluded(int64_t sequence) const;
  /// bool [P, T]: tokens in the pool at each step. positions: int64 [P].
  at::Tensor protected_at(int64_t sequence, const at::Tensor& positions) const;
  /// bool [T]: tokens in the pool once every whole group is quantized: errors of the span are
  /// measured so.
  at::Tensor protected_in_span(int64_t sequence) const;

  bool evicts() const { return kept_ > 0; }
  /// Tokens of one head that a cache of `tokens` tokens still holds.
  int64_t kept(int64_t tokens) const;
  /// Bytes of the scores by which tokens of such a cache are kept, of all heads and sequences: 4 a
  /// token.
  int64_t score_bytes(int64_t tokens) const;
  /// bool [P, T]: tokens that were dropped before or at each step.
  at::Tensor evicted_at(int64_t sequence, int64_t head, const at::Tensor& positions) const;

  /// What a cache quantizes of tokens [from, from + n), whole groups of the history, looked at by
  /// themselves.
  Schedule of_groups(int64_t from, int64_t n) const;

  /// Whether tokens decide what is held.
  bool looks_at_tokens() const { return !flush_steps_.empty() || protects() || evicts(); }

  /// What a reader of the row should know: "protect: …: position-selected".
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  void plan_flushes(const Settings& recipe, const data::Sample& sample);
  void plan_pool(const Settings& recipe, const data::Sample& sample);
  void plan_evictions(const Settings& recipe, const data::Sample& sample);
  int64_t groups_at(int64_t sequence, int64_t p) const;

  Windows windows_;
  int64_t tokens_;
  // By sequence; empty where the rule does not look at tokens.
  std::vector<std::vector<int64_t>> flush_steps_;  // first step at which group i is read quantized
  std::vector<int64_t> mean_recent_;               // tokens in the window behind the sinks
  std::vector<at::Tensor> leaves_pool_;  // int64 [T]: quantized groups from which on the token is
                                         // no longer in the pool, 0 where it never was
  int64_t pool_tokens_ = 0;
  int64_t kept_ = 0;  // tokens of a head at most
  bool scored_ = false;
  int64_t kv_heads_ = 1;
  std::vector<at::Tensor>
      dropped_;  // by sequence and head: int64 [T], first step without the token
  std::vector<std::string> notes_;
};

}  // namespace kvlab::cache
