#include "evaluate/decoding.h"

#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "base/names.h"
#include "cache/kv_cache.h"
#include "cache/schedule.h"
#include "quant/rounding.h"

namespace kvlab::evaluate {
namespace {

/// The cache of a packed backend.
class PackedCache final : public LayerCache {
 public:
  PackedCache(const LayerMethod& method, const cache::KvCache::Shape& shape,
              const std::string& backend)
      : method_(method),
        shape_(shape),
        backend_(backend),
        cache_(method.recipe, method.prepared, shape, backend) {}

  void prefill(const LayerTokens& prompt) override {
    cache_.prefill(prompt.k.unsqueeze(0), prompt.v.unsqueeze(0));
  }

  at::Tensor step(const LayerTokens& token, const at::Tensor& q) override {
    cache_.append(token.k.unsqueeze(0), token.v.unsqueeze(0));
    return cache_.attend(q.unsqueeze(0)).output.squeeze(0);
  }

  /// By the rule that bills a capture's cache: what the tokens take, not what was set aside.
  metrics::Arrays memory() const override {
    const int64_t tokens = cache_.tokens().front();
    const at::Tensor rows =
        at::zeros({shape_.kv_heads, tokens, shape_.head_dim}, quant::scalar_type(shape_.dtype));
    const data::Sample sample =
        sample_of({rows, rows, rows, at::zeros({tokens})}, rows, shape_.dtype, {});
    const cache::Schedule schedule(method_.recipe.settings, sample);
    return read_back(sample, method_, backend_, schedule).memory;
  }

 private:
  const LayerMethod& method_;
  cache::KvCache::Shape shape_;
  std::string backend_;
  cache::KvCache cache_;
};

/// The cache of `reference`: captured tokens, and beside them what each complete group gives back,
/// read once when its last token has come.
class ReferenceCache final : public LayerCache {
 public:
  /// window: the last tokens that the model's layer reads; 0: all.
  ReferenceCache(const LayerMethod& method, const cache::KvCache::Shape& shape,
                 const data::Rope& rope, int64_t window)
      : method_(method),
        shape_(shape),
        rope_(rope),
        window_(window),
        windows_(method.recipe.settings, shape.capacity),
        held_{rows(quant::scalar_type(shape.dtype)), rows(quant::scalar_type(shape.dtype)),
              rows(quant::scalar_type(shape.dtype)), at::empty({shape.capacity}, at::kFloat)},
        k_read_(rows(at::kFloat)),
        v_read_(rows(at::kFloat)) {}

  void prefill(const LayerTokens& prompt) override {
    add(prompt, at::zeros({shape_.kv_heads, 1, shape_.head_dim}));
  }

  at::Tensor step(const LayerTokens& token, const at::Tensor& q) override {
    add(token, q);
    const at::Tensor keys = as_read(cache::Windows::Side::key, held_.k, k_read_);
    const at::Tensor values = as_read(cache::Windows::Side::value, held_.v, v_read_);
    if (!schedule_->evicts()) return model::exact_attention(q, keys, values, window_);
    return attend_to_kept(q, keys, values);
  }

  metrics::Arrays memory() const override {
    const data::Sample sample = all_tokens(at::zeros({shape_.kv_heads, 1, shape_.head_dim}));
    const cache::Schedule schedule(method_.recipe.settings, sample);
    return read_back(sample, method_, "reference", schedule).memory;
  }

  std::vector<std::string> notes() const override {
    return schedule_ ? schedule_->notes() : std::vector<std::string>{};
  }

 private:
  at::Tensor rows(at::ScalarType type) const {
    return at::empty({shape_.kv_heads, shape_.capacity, shape_.head_dim}, type);
  }

  data::Sample all_tokens(const at::Tensor& q) const {
    return sample_of(held_.narrow(0, tokens_), q, shape_.dtype, rope_);
  }

  void add(const LayerTokens& tokens, const at::Tensor& q) {
    const int64_t n = tokens.size();
    if (tokens_ + n > shape_.capacity) {
      throw Error(fmt::format("a cache of {} tokens takes no {} more after {}", shape_.capacity, n,
                              tokens_));
    }
    const LayerTokens place = held_.narrow(tokens_, n);
    place.k.copy_(tokens.k);
    place.v.copy_(tokens.v);
    place.k_pre.copy_(tokens.k_pre);
    place.hidden_absmax.copy_(tokens.hidden_absmax);
    tokens_ += n;
    // Of the tokens so far and no others, anew where it depends on them.
    if (!schedule_ || schedule_->looks_at_tokens()) {
      schedule_.emplace(method_.recipe.settings, all_tokens(q));
    }
    const int64_t begin = std::max(read_end_, windows_.begin());
    const int64_t end = windows_.at_length(tokens_).span_end();
    if (end > begin) read_groups(begin, end - begin);
  }

  /// Groups are independent: a stretch of whole groups alone is read as it is within all tokens.
  void read_groups(int64_t from, int64_t n) {
    read_end_ = from + n;
    const LayerTokens stretch = held_.narrow(from, n);
    data::Rope rope = rope_;
    rope.origin += from;
    const data::Sample sample = sample_of(stretch, stretch.k, shape_.dtype, rope);
    const metrics::SampleContext context(sample);
    const cache::Schedule schedule = schedule_->of_groups(from, n);
    const auto readback =
        metrics::make_readback("reference", context, method_.prepared, method_.recipe, schedule);
    for (int64_t head = 0; head < shape_.kv_heads; ++head) {
      const at::Tensor key = readback->decode(metrics::WhichSide::key, 0, head).values;
      const at::Tensor value = readback->decode(metrics::WhichSide::value, 0, head).values;
      if (key.defined()) k_read_[head].narrow(0, from, n).copy_(key);
      if (value.defined()) v_read_[head].narrow(0, from, n).copy_(value);
    }
  }

  at::Tensor last_position() const { return at::tensor({tokens_ - 1}, at::kLong); }

  /// float32 [Hkv, tokens, d].
  at::Tensor as_read(cache::Windows::Side side, const at::Tensor& captured,
                     const at::Tensor& read) const {
    const int64_t begin = windows_.begin();
    const bool looks = schedule_->looks_at_tokens();
    const int64_t end =
        looks ? schedule_->boundary(side, 0, tokens_ - 1) : windows_.boundary(side, tokens_ - 1);
    at::Tensor all = captured.narrow(1, 0, tokens_).to(at::kFloat);
    if (end <= begin) return all;
    if (all.is_alias_of(captured)) all = all.clone();
    const at::Tensor history = all.narrow(1, begin, end - begin);
    const at::Tensor given = read.narrow(1, begin, end - begin);
    if (!schedule_->protects()) {
      history.copy_(given);
      return all;
    }
    const at::Tensor held =
        schedule_->protected_at(0, last_position())[0].narrow(0, begin, end - begin);
    history.copy_(at::where(held.view({1, -1, 1}), history, given));
    return all;
  }

  /// Attention to the tokens that are still there, which each head chooses by itself.
  at::Tensor attend_to_kept(const at::Tensor& q, const at::Tensor& keys,
                            const at::Tensor& values) const {
    const int64_t group = q.size(0) / shape_.kv_heads;
    std::vector<at::Tensor> outputs;
    for (int64_t head = 0; head < shape_.kv_heads; ++head) {
      at::Tensor gone = schedule_->evicted_at(0, head, last_position())[0];
      if (window_ > 0) gone.slice(0, 0, std::max<int64_t>(0, tokens_ - window_)).fill_(true);
      const at::Tensor kept = gone.logical_not().nonzero().squeeze(1);
      const auto of = [&](const at::Tensor& x) {
        return x.narrow(0, head, 1).index_select(1, kept);
      };
      outputs.push_back(model::exact_attention(q.narrow(0, head * group, group), of(keys),
                                               of(values), /*window=*/0));
    }
    return at::cat(outputs);
  }

  const LayerMethod& method_;
  cache::KvCache::Shape shape_;
  data::Rope rope_;
  int64_t window_;
  cache::Windows windows_;
  LayerTokens held_;            // of `capacity` tokens
  at::Tensor k_read_, v_read_;  // [Hkv, capacity, d]
  std::optional<cache::Schedule> schedule_;
  int64_t tokens_ = 0, read_end_ = 0;
};

}  // namespace

Decoding::Decoding(const LayerMethods& methods, const CacheUse& use, const model::Decoder& decoder,
                   int64_t capacity)
    : dtype_(use.dtype) {
  const model::Config& config = decoder.config();
  const cache::KvCache::Shape shape{.batch = 1,
                                    .kv_heads = config.kv_heads,
                                    .head_dim = config.head_dim,
                                    .capacity = capacity,
                                    .dtype = use.dtype};
  for (size_t layer = 0; layer < methods.size(); ++layer) {
    const int64_t window = config.windows[layer];
    if (use.backend == "reference") {
      caches_.push_back(
          std::make_unique<ReferenceCache>(methods[layer], shape, decoder.rope(), window));
    } else if (window > 0 && window < capacity) {
      throw Unsupported(
          fmt::format("the cache of backend {} has no sliding windows, and layer {} of the model "
                      "reads the last {} of {} tokens: decode with backend reference",
                      use.backend, layer, window, capacity));
    } else {
      caches_.push_back(std::make_unique<PackedCache>(methods[layer], shape, use.backend));
    }
  }
}

void Decoding::fill(const Prompt& prompt) {
  const c10::NoGradGuard no_grad;
  for (size_t layer = 0; layer < caches_.size(); ++layer) {
    caches_[layer]->prefill(prompt.layers[layer]);
  }
}

at::Tensor Decoding::operator()(const model::LayerInput& input) {
  const c10::NoGradGuard no_grad;
  LayerCache& cache = *caches_.at(static_cast<size_t>(input.layer));
  return cache.step(tokens_of(input, dtype_), input.q.to(at::kCPU).to(at::kFloat))
      .to(input.q.options());
}

metrics::Arrays Decoding::memory() const {
  std::vector<metrics::Arrays> layers;
  for (const auto& cache : caches_) layers.push_back(cache->memory());
  return over_layers(layers);
}

std::vector<std::string> Decoding::notes() const {
  std::vector<std::string> all;
  for (const auto& cache : caches_) {
    for (const std::string& note : cache->notes()) add_once(&all, note);
  }
  return all;
}

}  // namespace kvlab::evaluate
