#include "evaluate/decoding.h"

#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include "base/error.h"
#include "base/part.h"
#include "cache/kv_cache.h"
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

  void prefill(const at::Tensor& k, const at::Tensor& v) override {
    cache_.prefill(k.unsqueeze(0), v.unsqueeze(0));
  }

  at::Tensor step(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) override {
    cache_.append(k.unsqueeze(0), v.unsqueeze(0));
    return cache_.attend(q.unsqueeze(0)).output.squeeze(0);
  }

  /// By the rule that bills a capture's cache: what the tokens take, not what was set aside.
  metrics::Arrays memory() const override {
    const at::Tensor rows = at::zeros({shape_.kv_heads, cache_.tokens().front(), shape_.head_dim});
    return read_back(captured(rows, rows, rows, shape_.dtype), method_, backend_).memory;
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
  ReferenceCache(const LayerMethod& method, const cache::KvCache::Shape& shape)
      : method_(method),
        shape_(shape),
        windows_(method.recipe.settings, shape.capacity),
        k_(at::empty({shape.kv_heads, shape.capacity, shape.head_dim}, at::kFloat)),
        v_(at::empty_like(k_)),
        k_read_(at::empty_like(k_)),
        v_read_(at::empty_like(k_)) {}

  void prefill(const at::Tensor& k, const at::Tensor& v) override { add(k, v); }

  at::Tensor step(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) override {
    add(k, v);
    const at::Tensor keys = as_read(cache::Windows::Side::key, k_, k_read_);
    const at::Tensor values = as_read(cache::Windows::Side::value, v_, v_read_);
    return model::exact_attention(q.to(at::kFloat), keys, values, /*window=*/0);
  }

  metrics::Arrays memory() const override {
    const at::Tensor k = k_.narrow(1, 0, tokens_);
    return read_back(captured(k, k, v_.narrow(1, 0, tokens_), shape_.dtype), method_, "reference")
        .memory;
  }

 private:
  void add(const at::Tensor& k, const at::Tensor& v) {
    const int64_t n = k.size(1);
    if (tokens_ + n > shape_.capacity) {
      throw Error(fmt::format("a cache of {} tokens takes no {} more after {}", shape_.capacity, n,
                              tokens_));
    }
    k_.narrow(1, tokens_, n).copy_(rounded(k));
    v_.narrow(1, tokens_, n).copy_(rounded(v));
    tokens_ += n;
    const int64_t end = windows_.at_length(tokens_).span_end();
    if (end > read_end()) read_groups(read_end(), end - read_end());
  }

  at::Tensor rounded(const at::Tensor& x) const {
    return x.to(quant::scalar_type(shape_.dtype)).to(at::kFloat);
  }

  int64_t read_end() const { return std::max(read_end_, windows_.begin()); }

  /// Groups are independent: a stretch of whole groups alone is read as it is within all tokens.
  void read_groups(int64_t from, int64_t n) {
    read_end_ = from + n;
    LayerMethod stretch{method_.recipe, {}};
    stretch.recipe.settings["window.sink"] = 0;
    const at::Tensor k = k_.narrow(1, from, n);
    const data::Sample sample = captured(k, k, v_.narrow(1, from, n), shape_.dtype);
    const metrics::SampleContext context(sample);
    const cache::Schedule schedule(stretch.recipe.settings, sample);
    const auto readback =
        metrics::make_readback("reference", context, method_.prepared, stretch.recipe, schedule);
    for (int64_t head = 0; head < shape_.kv_heads; ++head) {
      const at::Tensor key = readback->decode(metrics::WhichSide::key, 0, head).values;
      const at::Tensor value = readback->decode(metrics::WhichSide::value, 0, head).values;
      if (key.defined()) k_read_[head].narrow(0, from, n).copy_(key);
      if (value.defined()) v_read_[head].narrow(0, from, n).copy_(value);
    }
  }

  at::Tensor as_read(cache::Windows::Side side, const at::Tensor& captured_rows,
                     const at::Tensor& read) const {
    const int64_t begin = windows_.begin();
    const int64_t end = windows_.boundary(side, tokens_ - 1);
    if (end <= begin) return captured_rows.narrow(1, 0, tokens_);
    return at::cat({captured_rows.narrow(1, 0, begin), read.narrow(1, begin, end - begin),
                    captured_rows.narrow(1, end, tokens_ - end)},
                   1);
  }

  const LayerMethod& method_;
  cache::KvCache::Shape shape_;
  cache::Windows windows_;
  at::Tensor k_, v_, k_read_, v_read_;  // [Hkv, capacity, d]
  int64_t tokens_ = 0, read_end_ = 0;
};

}  // namespace

Decoding::Decoding(const LayerMethods& methods, const CacheUse& use, const model::Config& config,
                   int64_t capacity) {
  const cache::KvCache::Shape shape{.batch = 1,
                                    .kv_heads = config.kv_heads,
                                    .head_dim = config.head_dim,
                                    .capacity = capacity,
                                    .dtype = use.dtype};
  for (size_t layer = 0; layer < methods.size(); ++layer) {
    if (config.windows[layer] > 0 && config.windows[layer] < capacity) {
      throw Unsupported(fmt::format(
          "evaluation: decode has no sliding windows, and layer {} reads the last {} of {} tokens",
          layer, config.windows[layer], capacity));
    }
    if (get_text(methods[layer].recipe.settings, "window.flush") == "dynamic") {
      throw Unsupported("evaluation: decode has no window.flush dynamic; teacher_forced has");
    }
    if (use.backend == "reference") {
      caches_.push_back(std::make_unique<ReferenceCache>(methods[layer], shape));
    } else {
      caches_.push_back(std::make_unique<PackedCache>(methods[layer], shape, use.backend));
    }
  }
}

void Decoding::fill(const Prompt& prompt) {
  const c10::NoGradGuard no_grad;
  for (size_t layer = 0; layer < caches_.size(); ++layer) {
    caches_[layer]->prefill(prompt.k[layer].to(at::kCPU), prompt.v[layer].to(at::kCPU));
  }
}

at::Tensor Decoding::operator()(const model::LayerInput& input) {
  const c10::NoGradGuard no_grad;
  LayerCache& cache = *caches_.at(static_cast<size_t>(input.layer));
  const auto host = [](const at::Tensor& x) { return x.to(at::kCPU); };
  return cache.step(host(input.q), host(input.k), host(input.v))
      .to(input.q.device())
      .to(input.q.scalar_type());
}

metrics::Arrays Decoding::memory() const {
  std::vector<metrics::Arrays> layers;
  for (const auto& cache : caches_) layers.push_back(cache->memory());
  return over_layers(layers);
}

}  // namespace kvlab::evaluate
