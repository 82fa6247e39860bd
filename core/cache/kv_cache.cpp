#include "cache/kv_cache.h"

#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
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

void KvCache::store(const at::Tensor& k, const at::Tensor& v, int step) {
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
  engine_->write_windows(view_, source, step, tokens, nullptr);
  if (!packed_.quantized) return;
  // A step's tokens pass through the ring, which is as much longer; a prefill may be longer still.
  const bool from_ring = step != kernels::kAllTokens;
  engine_->encode(view_, spec_, from_ring ? kernels::TokenSource{} : source, step,
                  from_ring ? rows_.recent : tokens, nullptr);
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
  store(key, value, kernels::kAllTokens);
}

void KvCache::append(const at::Tensor& k, const at::Tensor& v) {
  const c10::NoGradGuard no_grad;
  const at::Tensor key = captured(k, "k", kMostStep);
  const at::Tensor value = captured(v, "v", kMostStep);
  const int64_t n = key.size(2);
  if (value.size(2) != n) {
    throw Error(fmt::format("append: k has {} tokens, v {}", n, value.size(2)));
  }
  if (longest() + n > shape_.capacity) {
    throw Error(fmt::format("append: {} tokens more than the capacity of {}",
                            longest() + n - shape_.capacity, shape_.capacity));
  }
  std::vector<int64_t> tokens = tokens_;
  for (int64_t& count : tokens) count += n;
  set_tokens(std::move(tokens));
  store(key, value, static_cast<int>(n));
}

KvCache::Attended KvCache::attend(const at::Tensor& q, bool log_sum_exp) const {
  const c10::NoGradGuard no_grad;
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

  const Memory placed = engine_->place(query);
  const Memory output = engine_->allocate(query.numel() * 4);
  const int64_t rows = query.numel() / shape_.head_dim;
  const Memory sums = log_sum_exp ? engine_->allocate(rows * 4) : nullptr;
  kernels::AttendArgs args;
  args.query = placed.get();
  args.query_type = element_type(query);
  args.query_tokens = static_cast<int>(q.size(2));
  args.q_heads = static_cast<int>(q.size(1));
  args.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(shape_.head_dim)));
  tensors_.fill(args);
  args.output = output.get();
  args.output_type = kernels::Type::f32;
  args.log_sum_exp = static_cast<float*>(sums.get());
  engine_->plan_attend(view_, args, static_cast<int>(shape_.capacity))(nullptr);

  Attended attended;
  at::Tensor rows_out = at::empty(query.sizes(), at::kFloat);
  engine_->read(rows_out.data_ptr(), output.get(), static_cast<int64_t>(rows_out.nbytes()));
  attended.output = rows_out.transpose(1, 2).contiguous();
  if (log_sum_exp) {
    at::Tensor found = at::empty({q.size(0), q.size(2), q.size(1)}, at::kFloat);
    engine_->read(found.data_ptr(), sums.get(), static_cast<int64_t>(found.nbytes()));
    attended.log_sum_exp = found.transpose(1, 2).contiguous();
  }
  return attended;
}

at::Tensor KvCache::all_tokens(const at::Tensor& history, const std::uint16_t* sink,
                               const std::uint16_t* recent, bool keys) const {
  const auto rows_of = [&](const std::uint16_t* from, int rows) {
    at::Tensor held = at::empty({shape_.batch, shape_.kv_heads, rows, shape_.head_dim},
                                quant::scalar_type(shape_.dtype));
    engine_->read(held.data_ptr(), from, static_cast<int64_t>(held.nbytes()));
    return held.to(at::kFloat);
  };
  const at::Tensor sinks = rows_of(sink, rows_.sink);
  const at::Tensor ring = rows_of(recent, rows_.recent);
  at::Tensor all =
      at::zeros({shape_.batch, shape_.kv_heads, longest(), shape_.head_dim}, at::kFloat);
  for (int64_t b = 0; b < shape_.batch; ++b) {
    const auto count = static_cast<int>(tokens_[static_cast<size_t>(b)]);
    const kernels::HistoryEnds ends = kernels::history_ends(view_.rule, count);
    const int begin = kernels::history_begin(view_, count);
    const int end = keys ? ends.key : ends.value;
    all[b].narrow(1, 0, begin).copy_(sinks[b].narrow(1, 0, begin));
    all[b].narrow(1, begin, end - begin).copy_(history[b].narrow(1, 0, end - begin));
    if (end == count) continue;
    const at::Tensor places = at::arange(end, count, at::kLong).remainder_(rows_.recent);
    all[b].narrow(1, end, count - end).copy_(ring[b].index_select(1, places));
  }
  return all;
}

KvCache::Tokens KvCache::dequantize() const {
  const c10::NoGradGuard no_grad;
  const int64_t rows = std::max<int64_t>(1, longest() - std::min<int64_t>(rows_.sink, longest()));
  at::Tensor k = at::zeros({shape_.batch, shape_.kv_heads, rows, shape_.head_dim}, at::kFloat);
  at::Tensor v = at::zeros_like(k);
  if (packed_.quantized) {
    const auto bytes = static_cast<int64_t>(k.nbytes());
    const Memory key = engine_->allocate(bytes);
    const Memory value = engine_->allocate(bytes);
    engine_->dequantize(view_, &spec_, key.get(), value.get(), kernels::Type::f32, rows);
    engine_->read(k.data_ptr(), key.get(), bytes);
    engine_->read(v.data_ptr(), value.get(), bytes);
  }
  return {all_tokens(k, view_.sink_key, view_.recent_key, true),
          all_tokens(v, view_.sink_value, view_.recent_value, false)};
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
