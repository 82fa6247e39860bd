#include "cache/eviction.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace kvlab::cache {
namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

/// The tokens of one head that are in the cache, in order, with what was paid to them so far.
class Scores {
 public:
  void append(int64_t token) {
    tokens_.push_back(token);
    scores_.push_back(0.0);
  }

  /// Adds the softmax over the tokens that are there of a row of logits [T].
  void attend(const float* logits) {
    weights_.resize(tokens_.size());
    float largest = -std::numeric_limits<float>::infinity();
    for (const int64_t token : tokens_) largest = std::max(largest, logits[token]);
    double sum = 0.0;
    for (size_t i = 0; i < tokens_.size(); ++i) {
      weights_[i] = std::exp(logits[tokens_[i]] - largest);
      sum += static_cast<double>(weights_[i]);
    }
    const double share = 1.0 / sum;
    for (size_t i = 0; i < tokens_.size(); ++i) {
      scores_[i] += static_cast<double>(weights_[i]) * share;
    }
  }

  /// Drops the lowest score among tokens [first, end) while more than `most` of them are there.
  template <class Drop>
  void shrink(int64_t first, int64_t end, int64_t most, const Drop& drop) {
    const auto position = [&](int64_t token) {
      return std::lower_bound(tokens_.begin(), tokens_.end(), token) - tokens_.begin();
    };
    while (position(end) - position(first) > std::max<int64_t>(most, 0) && first < end) {
      const auto lowest =
          std::min_element(scores_.begin() + position(first), scores_.begin() + position(end));
      const auto index = lowest - scores_.begin();
      drop(tokens_[static_cast<size_t>(index)]);
      tokens_.erase(tokens_.begin() + index);
      scores_.erase(lowest);
    }
  }

 private:
  std::vector<int64_t> tokens_;
  std::vector<double> scores_;
  std::vector<float> weights_;
};

}  // namespace

at::Tensor streaming_evictions(int64_t tokens, const EvictionRule& rule) {
  at::Tensor dropped = at::arange(tokens, at::kLong) + rule.recent;
  dropped.narrow(0, 0, std::min(rule.sink, tokens)).fill_(kNever);
  return dropped;
}

at::Tensor heavy_hitter_evictions(const at::Tensor& q, const at::Tensor& k,
                                  const EvictionRule& rule) {
  constexpr int64_t kBlock = 64;
  const int64_t tokens = k.size(0);
  at::Tensor dropped = at::full({tokens}, kNever, at::kLong);
  auto* const steps = dropped.data_ptr<int64_t>();
  const auto scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(k.size(1))));
  const at::Tensor keys = k.to(at::kFloat).t();
  Scores scores;
  for (int64_t first = 0; first < tokens; first += kBlock) {
    const int64_t count = std::min(kBlock, tokens - first);
    const int64_t end = first + count;
    const at::Tensor logits = q.narrow(1, first, count)
                                  .to(at::kFloat)
                                  .mul(scale)
                                  .matmul(keys.narrow(1, 0, end))
                                  .contiguous();  // [group, count, end]
    const float* const row = logits.const_data_ptr<float>();
    for (int64_t p = first; p < end; ++p) {
      scores.append(p);
      for (int64_t j = 0; j < q.size(0); ++j) scores.attend(row + (j * count + p - first) * end);
      scores.shrink(rule.sink, p + 2 - rule.recent, rule.heavy,
                    [&](int64_t token) { steps[token] = p + 1; });
    }
  }
  return dropped;
}

}  // namespace kvlab::cache
