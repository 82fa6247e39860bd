#include "cache/schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "cache/eviction.h"
#include "cache/pool.h"

namespace kvlab::cache {
namespace {

constexpr int64_t kAlways = std::numeric_limits<int64_t>::max();

std::vector<double> numbers(const at::Tensor& x) {
  const at::Tensor flat = x.to(at::kDouble).contiguous();
  return {flat.const_data_ptr<double>(), flat.const_data_ptr<double>() + flat.numel()};
}

/// Sum over heads of f(key row), float64 [T], a head at a time.
template <class Measure>
at::Tensor over_heads(const at::Tensor& k, const Measure& measure) {
  at::Tensor sum = at::zeros({k.size(1)}, at::kDouble);
  for (int64_t head = 0; head < k.size(0); ++head) sum += measure(k[head].to(at::kDouble));
  return sum;
}

/// How little a token deserves a place in the pool, [T].
std::vector<double> pool_scores(const std::string& kind, const data::Sample& sample,
                                const at::Tensor& hidden, int64_t sequence) {
  if (kind == "low_norm") {
    return numbers(
        over_heads(sample.k[sequence], [](const at::Tensor& k) { return k.abs().sum(-1); }));
  }
  if (hidden.defined()) return numbers(hidden[sequence].neg());
  return numbers(at::arange(sample.tokens(), at::kDouble));
}

/// bool [1, n]: row of numbers above those of a column [P, 1].
at::Tensor above(const at::Tensor& row, const at::Tensor& column) {
  return row.unsqueeze(0).gt(column.unsqueeze(1));
}

}  // namespace

Schedule::Schedule(const Settings& recipe, const data::Sample& sample)
    : windows_(recipe, sample.tokens()), tokens_(sample.tokens()), kv_heads_(sample.kv_heads()) {
  if (windows_.flush() == Windows::Flush::dynamic) plan_flushes(recipe, sample);
  if (get_text(recipe, "protect.kind") != "none") plan_pool(recipe, sample);
  if (get_text(recipe, "evict.kind") != "none") plan_evictions(recipe, sample);
}

void Schedule::plan_flushes(const Settings& recipe, const data::Sample& sample) {
  const double most_uneven = get_real(recipe, "window.tni");
  const int64_t least = std::max<int64_t>(1, get_int(recipe, "window.min"));
  const int64_t most = std::max<int64_t>(1, get_int(recipe, "window.max"));
  const int64_t begin = windows_.begin();
  const int64_t group = windows_.group();
  for (int64_t b = 0; b < sample.batch(); ++b) {
    const std::vector<double> norms = numbers(
        over_heads(sample.k[b], [](const at::Tensor& k) { return k.square().sum(-1); }).sqrt());
    std::vector<int64_t> steps;
    for (int64_t first = begin; first + group <= tokens_; first += group) {
      const auto [low, high] =
          std::minmax_element(norms.begin() + first, norms.begin() + first + group);
      const bool uneven = *high > most_uneven * *low;
      // Step p holds p + 1 tokens. A block never overtakes the one before it.
      const int64_t step = first + group + (uneven ? most : least) - 1;
      steps.push_back(steps.empty() ? step : std::max(step, steps.back()));
    }
    flush_steps_.push_back(std::move(steps));

    int64_t held = 0;
    const int64_t half = tokens_ / 2;
    for (int64_t p = half; p < tokens_; ++p) held += p + 1 - boundary(Side::key, b, p);
    mean_recent_.push_back(held / std::max<int64_t>(1, tokens_ - half));
  }
}

void Schedule::plan_pool(const Settings& recipe, const data::Sample& sample) {
  const std::string kind = get_text(recipe, "protect.kind");
  pool_tokens_ = get_int(recipe, "protect.tokens");
  at::Tensor hidden;
  if (kind == "massive") {
    try {
      if (!sample.more.hidden_absmax) throw Unsupported("the sample has no hidden states");
      hidden = sample.more.hidden_absmax();
    } catch (const Unsupported& reason) {
      notes_.push_back(fmt::format("protect: position-selected, the first {} tokens ({})",
                                   pool_tokens_, reason.what()));
    }
  }
  const int64_t group = windows_.group();
  const int64_t groups = (windows_.span_end() - windows_.begin()) / group;
  for (int64_t b = 0; b < sample.batch(); ++b) {
    leaves_pool_.push_back(
        at::tensor(pool_membership(pool_scores(kind, sample, hidden, b), windows_.begin(), group,
                                   groups, pool_tokens_),
                   at::kLong));
  }
}

void Schedule::plan_evictions(const Settings& recipe, const data::Sample& sample) {
  EvictionRule rule{
      .sink = get_int(recipe, "evict.sink"), .recent = get_int(recipe, "evict.recent"), .heavy = 0};
  scored_ = get_text(recipe, "evict.kind") == "heavy_hitter";
  at::Tensor queries;
  if (scored_) {
    rule.heavy = get_int(recipe, "evict.heavy");
    if (!sample.more.every_query) throw Unsupported("the sample has no queries of all positions");
    queries = sample.more.every_query();
  }
  kept_ = rule.sink + rule.recent + rule.heavy;
  for (int64_t b = 0; b < sample.batch(); ++b) {
    for (int64_t head = 0; head < kv_heads_; ++head) {
      dropped_.push_back(scored_ ? heavy_hitter_evictions(
                                       queries[b].narrow(0, head * sample.group(), sample.group()),
                                       sample.k[b][head], rule)
                                 : streaming_evictions(tokens_, rule));
    }
  }
}

int64_t Schedule::boundary(Side side, int64_t sequence, int64_t p) const {
  if (flush_steps_.empty() || !windows_.quantizes(side)) return windows_.boundary(side, p);
  const std::vector<int64_t>& steps = flush_steps_[static_cast<size_t>(sequence)];
  const auto flushed = std::upper_bound(steps.begin(), steps.end(), p) - steps.begin();
  return windows_.begin() + windows_.group() * flushed;
}

int64_t Schedule::boundary_at_length(Side side, int64_t sequence, int64_t tokens) const {
  if (tokens == tokens_) return boundary(side, sequence, tokens - 1);
  const Windows rule = windows_.at_length(tokens);
  if (flush_steps_.empty() || !windows_.quantizes(side)) return rule.boundary(side, tokens - 1);
  const int64_t behind = tokens - rule.begin() - mean_recent_[static_cast<size_t>(sequence)];
  return rule.begin() + rule.group() * (std::max<int64_t>(0, behind) / rule.group());
}

int64_t Schedule::pool_size(int64_t history) const { return std::min(pool_tokens_, history); }

int64_t Schedule::groups_at(int64_t sequence, int64_t p) const {
  return (boundary(Side::key, sequence, p) - windows_.begin()) / windows_.group();
}

at::Tensor Schedule::excluded(int64_t sequence) const {
  return leaves_pool_[static_cast<size_t>(sequence)].gt(0);
}

at::Tensor Schedule::protected_at(int64_t sequence, const at::Tensor& positions) const {
  std::vector<int64_t> groups;
  for (int64_t i = 0; i < positions.size(0); ++i) {
    groups.push_back(groups_at(sequence, positions[i].item<int64_t>()));
  }
  return above(leaves_pool_[static_cast<size_t>(sequence)], at::tensor(groups, at::kLong));
}

at::Tensor Schedule::protected_in_span(int64_t sequence) const {
  return leaves_pool_[static_cast<size_t>(sequence)].eq(kAlways);
}

int64_t Schedule::kept(int64_t tokens) const { return evicts() ? std::min(tokens, kept_) : tokens; }

int64_t Schedule::score_bytes(int64_t tokens) const {
  return scored_ ? 4 * kept(tokens) * static_cast<int64_t>(dropped_.size()) : 0;
}

at::Tensor Schedule::evicted_at(int64_t sequence, int64_t head, const at::Tensor& positions) const {
  const at::Tensor& dropped = dropped_[static_cast<size_t>(sequence * kv_heads_ + head)];
  return above(dropped, positions).logical_not_();
}

Schedule Schedule::of_groups(int64_t from, int64_t n) const {
  Schedule part = *this;
  part.windows_ = windows_.behind_sink(n);
  part.tokens_ = n;
  part.flush_steps_.clear();
  part.dropped_.clear();
  part.kept_ = 0;
  for (at::Tensor& leaves : part.leaves_pool_) leaves = leaves.narrow(0, from, n);
  return part;
}

}  // namespace kvlab::cache
