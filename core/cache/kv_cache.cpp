#include "cache/kv_cache.h"

#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/names.h"
#include "kvlab/kernels/layout.h"
#include "quant/rounding.h"

namespace kvlab::cache {
KvCache::KvCache(const method::Recipe& recipe, const calibrate::Prepared& prepared,
                 const Shape& shape, const std::string& backend)
    : shape_(shape),
      packed_(packed_format(recipe.settings, shape.head_dim, shape.dtype)),
      engine_(make_engine(backend)),
      tensors_(*engine_, recipe, prepared, shape.head_dim),
      spec_(tensors_.encode()),
      rows_(window_rows(packed_.rule, shape.capacity, kMostStep)),
      tokens_(static_cast<size_t>(shape.batch), 0) {
  constexpr int64_t kMost = std::numeric_limits<int>::max() / 2;
  if (shape.batch < 1 || shape.kv_heads < 1 || shape.capacity < 1 || shape.capacity > kMost) {
    throw Error(fmt::format("a cache of {} sequences of {} tokens and {} KV heads cannot be made",
                            shape.batch, shape.capacity, shape.kv_heads));
  }
  const int64_t block = kernels::block_tokens(packed_.format);
  const int64_t blocks = (shape.capacity - rows_.sink + block - 1) / block;
  const int64_t pages = shape.batch * blocks;
  pool_ = engine_->allocate(pages * shape.kv_heads * kernels::layout_of(packed_.format).bytes);
  table_ = engine_->place(at::arange(pages, at::kInt));
  head_table_ = engine_->place(at::arange(pages, at::kInt) * shape.kv_heads);
  held_ = engine_->place(at::zeros({shape.batch}, at::kInt));
  const auto window = [&](int rows) {
    return engine_->allocate(shape.batch * shape.kv_heads * rows * shape.head_dim * 2);
  };
  sink_key_ = window(rows_.sink);
  sink_value_ = window(rows_.sink);
  recent_key_ = window(rows_.recent);
  recent_value_ = window(rows_.recent);

  view_.format = packed_.format;
  view_.rule = packed_.rule;
  view_.rule.sink = rows_.sink;  // beyond its capacity there are no tokens
  view_.batch = static_cast<int>(shape.batch);
  view_.kv_heads = static_cast<int>(shape.kv_heads);
  view_.pool = static_cast<std::uint8_t*>(pool_.get());
  view_.block_table = static_cast<const std::int32_t*>(table_.get());
  view_.table_stride = blocks;
  view_.sink_key = static_cast<std::uint16_t*>(sink_key_.get());
  view_.sink_value = static_cast<std::uint16_t*>(sink_value_.get());
  view_.recent_key = static_cast<std::uint16_t*>(recent_key_.get());
  view_.recent_value = static_cast<std::uint16_t*>(recent_value_.get());
  view_.sink_capacity = rows_.sink;
  view_.recent_capacity = std::max(1, rows_.recent);  // a ring of no rows is never touched
  view_.sink_stride = shape.kv_heads * rows_.sink * shape.head_dim;
  view_.recent_stride = shape.kv_heads * rows_.recent * shape.head_dim;
  view_.tokens = static_cast<const std::int32_t*>(held_.get());
}

int64_t KvCache::longest() const { return *std::max_element(tokens_.begin(), tokens_.end()); }

at::Tensor KvCache::captured(const at::Tensor& x, const char* name, int64_t most) const {
  const bool fits = x.dim() == 4 && x.size(0) == shape_.batch && x.size(1) == shape_.kv_heads &&
                    x.size(2) <= most && x.size(3) == shape_.head_dim;
  if (!fits) {
    throw Error(fmt::format("{} must be [{}, {}, at most {} tokens, {}], found [{}]", name,
                            shape_.batch, shape_.kv_heads, most, shape_.head_dim,
                            fmt::join(x.sizes().vec(), ", ")));
  }
  return x.detach().to(at::kCPU).to(quant::scalar_type(shape_.dtype)).contiguous();
}

void KvCache::set_tokens(std::vector<int64_t> tokens) {
  tokens_ = std::move(tokens);
  const at::Tensor held = at::tensor(tokens_, at::kInt);
  engine_->write(held_.get(), held.data_ptr(), static_cast<int64_t>(held.nbytes()));
}

Work KvCache::storing(const at::Tensor& k, const at::Tensor& v, int step) const {
  const Memory key = engine_->place(k);
  const Memory value = engine_->place(v);
  kernels::TokenSource source;
  source.key = key.get();
  source.value = value.get();
  source.type = packed_.format.window;
  source.batch_stride = k.stride(0);
  source.head_stride = k.stride(1);
  source.token_stride = k.stride(2);
  const int tokens = static_cast<int>(k.size(2));
  return [this, key, value, source, step, tokens](kernels::cuda::Stream stream) {
    engine_->write_windows(view_, source, step, tokens, stream);
    if (!packed_.quantized) return;
    // A step's tokens pass through the ring; a prefill may be longer than it.
    const bool from_ring = step != kernels::kAllTokens;
    engine_->encode(view_, spec_, from_ring ? kernels::TokenSource{} : source, step,
                    from_ring ? rows_.recent : tokens, stream);
  };
}

void KvCache::prefill(const at::Tensor& k, const at::Tensor& v,
                      const std::vector<int64_t>& lengths) {
  const c10::NoGradGuard no_grad;
  const at::Tensor key = captured(k, "k", shape_.capacity);
  const at::Tensor value = captured(v, "v", shape_.capacity);
  const int64_t n = key.size(2);
  const std::vector<int64_t> tokens =
      lengths.empty() ? std::vector<int64_t>(tokens_.size(), n) : lengths;
  const bool fit = tokens.size() == tokens_.size() && value.size(2) == n &&
                   std::all_of(tokens.begin(), tokens.end(),
                               [&](int64_t length) { return 0 <= length && length <= n; });
  if (!fit) {
    throw Error(
        fmt::format("prefill: lengths [{}] do not fit k of {} and v of {} tokens of {} "
                    "sequences",
                    fmt::join(tokens, ", "), n, value.size(2), shape_.batch));
  }
  set_tokens(tokens);
  storing(key, value, kernels::kAllTokens)(nullptr);
}

Work KvCache::prefill_work(const at::Tensor& k, const at::Tensor& v) {
  prefill(k, v);
  return storing(captured(k, "k", shape_.capacity), captured(v, "v", shape_.capacity),
                 kernels::kAllTokens);
}

void KvCache::append(const at::Tensor& k, const at::Tensor& v) {
  const c10::NoGradGuard no_grad;
  const at::Tensor key = captured(k, "k", kMostStep);
  const at::Tensor value = captured(v, "v", kMostStep);
  const int64_t n = key.size(2);
  if (value.size(2) != n) {
    throw Error(fmt::format("append: k has {}, v {}", counted(n, "token"), value.size(2)));
  }
  if (longest() + n > shape_.capacity) {
    throw Error(fmt::format("append: {} more than the capacity of {}",
                            counted(longest() + n - shape_.capacity, "token"), shape_.capacity));
  }
  std::vector<int64_t> tokens = tokens_;
  for (int64_t& count : tokens) count += n;
  set_tokens(std::move(tokens));
  storing(key, value, static_cast<int>(n))(nullptr);
}

KvCache::Attention KvCache::attention(const at::Tensor& q, bool log_sum_exp) const {
  const bool fits = q.dim() == 4 && q.size(0) == shape_.batch && q.size(3) == shape_.head_dim &&
                    q.size(2) >= 1 && q.size(2) <= kMostStep && q.size(1) > 0 &&
                    q.size(1) % shape_.kv_heads == 0;
  if (!fits) {
    throw Error(fmt::format(
        "q must be [{}, a multiple of {} heads, 1 to {} tokens, {}], found [{}]", shape_.batch,
        shape_.kv_heads, kMostStep, shape_.head_dim, fmt::join(q.sizes().vec(), ", ")));
  }
  if (auto reason = heads_refusal(q.size(1), shape_.kv_heads)) throw Unsupported(*reason);
  at::Tensor query = q.detach().to(at::kCPU);
  if (query.scalar_type() == at::kDouble) query = query.to(at::kFloat);
  query = query.transpose(1, 2).contiguous();

  Attention attention;
  attention.sizes = query.sizes().vec();
  attention.query = engine_->place(query);
  attention.output = engine_->allocate(query.numel() * 4);
  if (log_sum_exp) attention.log_sum_exp = engine_->allocate(query.numel() / shape_.head_dim * 4);
  kernels::AttendArgs args;
  args.query = attention.query.get();
  args.query_type = element_type(query);
  args.query_tokens = static_cast<int>(q.size(2));
  args.q_heads = static_cast<int>(q.size(1));
  args.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(shape_.head_dim)));
  tensors_.fill(args);
  args.output = attention.output.get();
  args.output_type = kernels::Type::f32;
  args.log_sum_exp = static_cast<float*>(attention.log_sum_exp.get());
  attention.work = engine_->plan_attend(view_, args, static_cast<int>(shape_.capacity));
  return attention;
}

KvCache::Attended KvCache::attend(const at::Tensor& q, bool log_sum_exp) const {
  const c10::NoGradGuard no_grad;
  const Attention attention = this->attention(q, log_sum_exp);
  attention.work(nullptr);
  const auto read = [&](const Memory& memory, const std::vector<int64_t>& sizes) {
    at::Tensor rows = at::empty(sizes, at::kFloat);
    engine_->read(rows.data_ptr(), memory.get(), static_cast<int64_t>(rows.nbytes()));
    return rows.transpose(1, 2).contiguous();
  };
  const std::vector<int64_t>& sizes = attention.sizes;
  Attended attended;
  attended.output = read(attention.output, sizes);
  if (log_sum_exp) {
    attended.log_sum_exp = read(attention.log_sum_exp, {sizes[0], sizes[1], sizes[2]});
  }
  return attended;
}

Work KvCache::attend_work(const at::Tensor& q) const {
  const c10::NoGradGuard no_grad;
  const auto attention = std::make_shared<const Attention>(this->attention(q, false));
  return [attention](kernels::cuda::Stream stream) { attention->work(stream); };
}

kernels::CacheView KvCache::head_view(int64_t sequence, int64_t head) const {
  kernels::CacheView view = view_;
  view.batch = 1;
  view.kv_heads = 1;
  view.pool += head * kernels::layout_of(packed_.format).bytes;
  view.block_table =
      static_cast<const std::int32_t*>(head_table_.get()) + sequence * view.table_stride;
  const int64_t index = sequence * shape_.kv_heads + head;
  const int64_t sink = index * rows_.sink * shape_.head_dim;
  const int64_t recent = index * rows_.recent * shape_.head_dim;
  view.sink_key += sink;
  view.sink_value += sink;
  view.recent_key += recent;
  view.recent_value += recent;
  view.tokens += sequence;
  return view;
}

at::Tensor KvCache::head_tokens(const at::Tensor& history, const kernels::CacheView& view,
                                int64_t tokens, bool keys) const {
  const auto rows_of = [&](const std::uint16_t* from, int rows) {
    at::Tensor held = at::empty({rows, shape_.head_dim}, quant::scalar_type(shape_.dtype));
    engine_->read(held.data_ptr(), from, static_cast<int64_t>(held.nbytes()));
    return held.to(at::kFloat);
  };
  const auto count = static_cast<int>(tokens);
  const kernels::HistoryEnds ends = kernels::history_ends(view.rule, count);
  const int begin = kernels::history_begin(view, count);
  const int end = keys ? ends.key : ends.value;
  const at::Tensor sink = rows_of(keys ? view.sink_key : view.sink_value, rows_.sink);
  const at::Tensor ring = rows_of(keys ? view.recent_key : view.recent_value, rows_.recent);
  std::vector<at::Tensor> parts = {sink.narrow(0, 0, begin), history.narrow(0, 0, end - begin)};
  if (end < count) {
    const at::Tensor places = at::arange(end, count, at::kLong).remainder_(rows_.recent);
    parts.push_back(ring.index_select(0, places));
  }
  return at::cat(parts);
}

KvCache::Tokens KvCache::dequantize(int64_t sequence, int64_t head) const {
  const c10::NoGradGuard no_grad;
  const int64_t tokens = tokens_.at(static_cast<size_t>(sequence));
  const kernels::CacheView view = head_view(sequence, head);
  at::Tensor k = at::empty({tokens, shape_.head_dim}, at::kFloat);
  at::Tensor v = at::empty_like(k);
  if (packed_.quantized && tokens > 0) {
    const auto bytes = static_cast<int64_t>(k.nbytes());
    const Memory key = engine_->allocate(bytes);
    const Memory value = engine_->allocate(bytes);
    const kernels::EncodeSpec spec = tensors_.encode(head);
    engine_->dequantize(view, &spec, key.get(), value.get(), kernels::Type::f32, tokens);
    engine_->read(k.data_ptr(), key.get(), bytes);
    engine_->read(v.data_ptr(), value.get(), bytes);
  }
  return {head_tokens(k, view, tokens, true), head_tokens(v, view, tokens, false)};
}

KvCache::Tokens KvCache::dequantize() const {
  const std::vector<int64_t> sizes = {shape_.batch, shape_.kv_heads, longest(), shape_.head_dim};
  Tokens all{at::zeros(sizes, at::kFloat), at::zeros(sizes, at::kFloat)};
  for (int64_t b = 0; b < shape_.batch; ++b) {
    for (int64_t head = 0; head < shape_.kv_heads; ++head) {
      const Tokens one = dequantize(b, head);
      all.k[b][head].narrow(0, 0, one.k.size(0)).copy_(one.k);
      all.v[b][head].narrow(0, 0, one.v.size(0)).copy_(one.v);
    }
  }
  return all;
}

PackedBytes KvCache::bytes() const {
  PackedFormat packed = packed_;
  packed.rule = view_.rule;
  PackedBytes bytes;
  for (const int64_t tokens : tokens_) {
    bytes += sequence_bytes(packed, shape_.kv_heads, tokens, rows_);
  }
  bytes.centers = tensors_.center_bytes();
  return bytes;
}

}  // namespace kvlab::cache
