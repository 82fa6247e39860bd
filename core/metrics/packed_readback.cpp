// The packed backends: a sample is encoded once, as a whole, and every probe reads the same blocks
// with the windows as they stood at its step.
#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "cache/engine.h"
#include "cache/packed_bytes.h"
#include "cache/packed_format.h"
#include "cache/packed_spec.h"
#include "kvlab/kernels/float_bits.h"
#include "kvlab/kernels/layout.h"
#include "metrics/probe_limits.h"
#include "metrics/readback.h"
#include "metrics/single_errors.h"
#include "quant/parts.h"
#include "quant/uniform.h"

namespace kvlab::metrics {
namespace {

using cache::Memory;
using cache::PackedFormat;
using kernels::CacheView;

/// Parameters and norms of one head of one sequence as its blocks hold them.
class Stored {
 public:
  /// blocks: those of all heads in a row.
  Stored(const PackedFormat& packed, const std::uint8_t* blocks, int64_t kv_heads, int64_t head)
      : format_(packed.format),
        at_(kernels::layout_of(packed.format)),
        first_(blocks + head * at_.bytes),
        stride_(kv_heads * at_.bytes) {}

  /// Of the first n tokens of the history, shaped to broadcast over the grouped view. keys: which
  /// side.
  quant::UniformParams params(bool keys, int64_t n) const {
    const kernels::SideFormat& side = keys ? format_.key : format_.value;
    quant::UniformParams params;
    params.scale = section(side, keys ? at_.key_scale : at_.value_scale, n);
    if (kernels::stores_zero(side))
      params.zero = section(side, keys ? at_.key_zero : at_.value_zero, n);
    params.flat = params.scale.eq(0);
    return params;
  }

  /// float32 [n] as stored; undefined where there are none.
  at::Tensor norms(int64_t n) const {
    if (format_.norm == kernels::Norm::none) return {};
    at::Tensor norms = at::empty({n}, at::kFloat);
    for (int64_t t = 0; t < n; ++t) {
      norms.data_ptr<float>()[t] = kernels::load_number(
          block_of(t) + at_.norm, kernels::norm_index(token_in(t)), format_.norm_type);
    }
    return norms;
  }

 private:
  const std::uint8_t* block_of(int64_t t) const {
    return first_ + t / kernels::block_tokens(format_) * stride_;
  }
  int token_in(int64_t t) const { return static_cast<int>(t % kernels::block_tokens(format_)); }

  at::Tensor section(const kernels::SideFormat& side, int offset, int64_t n) const {
    const bool per_channel = side.axis == kernels::Axis::channel;
    const int64_t rows = per_channel ? n / side.group : n;
    const int64_t columns = per_channel ? format_.dim : format_.dim / side.group;
    at::Tensor numbers = at::empty({1, rows, columns}, at::kFloat);
    float* out = numbers.data_ptr<float>();
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t t = per_channel ? row * side.group : row;
      for (int64_t column = 0; column < columns; ++column) {
        const int channel = static_cast<int>(per_channel ? column : column * side.group);
        const int index = kernels::param_index(format_, side, token_in(t), channel);
        *out++ = kernels::load_number(block_of(t) + offset, index, side.params);
      }
    }
    return numbers.unsqueeze(per_channel ? 2 : 3);
  }

  kernels::Format format_;
  kernels::Layout at_;
  const std::uint8_t* first_;
  int64_t stride_;
};

/// Elements whose unclamped code of the unclipped value is out of range. x: float32 [n, d].
int64_t count_saturated(const at::Tensor& x, const quant::UniformParams& params,
                        const quant::UniformSpec& spec) {
  const at::Tensor codes = quant::uniform_codes(quant::grouped(x.unsqueeze(0), spec), params, spec);
  at::Tensor outside = codes.lt(0).logical_or_(codes.gt(quant::largest_code(spec)));
  if (spec.grid == quant::UniformSpec::Grid::float_zero)
    outside.logical_and_(params.flat.logical_not());
  return outside.sum().item<int64_t>();
}

/// What enters the codec, float32 [n, d]. norms: as stored, or undefined.
at::Tensor entering(const transform::Transform& transform, const at::Tensor& x, int64_t head,
                    const at::Tensor& norms) {
  at::Tensor y = x.to(at::kFloat);
  if (transform.center().defined()) y = y - transform.center()[head];
  const at::Tensor rotation = transform.rotation_of(head);
  const auto rotate = [&] {
    if (rotation.defined()) y = y.matmul(rotation.to(at::kFloat));
  };
  const transform::TokenScale& scale = transform.token_scale();
  if (scale.rotate_first) rotate();
  if (norms.defined()) {
    const at::Tensor column = norms.unsqueeze(-1);
    y = scale.inverse ? y * column : y / column;
  }
  if (!scale.rotate_first) rotate();
  return y;
}

class PackedReadback final : public Readback {
 public:
  PackedReadback(const std::string& backend, const SampleContext& context,
                 const calibrate::Prepared& method, const method::Recipe& recipe,
                 const cache::Schedule& schedule)
      : context_(context),
        method_(method),
        recipe_(recipe),
        packed_(cache::packed_format(recipe.settings, sample().head_dim(), sample().dtype)),
        engine_(cache::make_engine(backend)),
        spec_(*engine_, recipe, method, sample().head_dim()),
        begin_(schedule.windows().begin()),
        count_(packed_.quantized ? schedule.windows().span_end() - begin_ : 0),
        limits_(schedule, /*sequence=*/0, sample().positions),
        held_at_probes_(engine_->place((sample().positions + 1).to(at::kInt))) {
    if (const std::string& what = context.nonfinite(); !what.empty()) {
      throw Unsupported(cache::nonfinite_refusal(what));
    }
    if (packed_.quantized) {
      specs_[0] = quant::UniformSpec::from(below(recipe.settings, "key.codec."), dim());
      specs_[1] = quant::UniformSpec::from(below(recipe.settings, "value.codec."), dim());
    }
    const int64_t block = kernels::block_tokens(packed_.format);
    blocks_ = (count_ + block - 1) / block;
    const int64_t pages = std::max<int64_t>(1, blocks_);
    pool_ = engine_->allocate(pages * heads() * block_bytes());
    table_ = engine_->place(at::arange(pages, at::kInt));
    head_table_ = engine_->place(at::arange(pages, at::kInt) * heads());
    held_ = engine_->place(at::full({1}, sample().tokens(), at::kInt));
    unread_ =
        at::arange(begin_, begin_ + count_, at::kLong).unsqueeze(0).ge(limits_.key.unsqueeze(1));
  }

  Decoded decode(WhichSide side, int64_t sequence, int64_t head) override {
    if (!packed_.quantized) return {};
    open(sequence);
    if (head != head_) decode_head(head);
    const bool keys = side == WhichSide::key;
    const calibrate::PreparedSide& prepared = keys ? method_.key : method_.value;
    const at::Tensor& captured = keys ? k_ : v_;
    Decoded decoded;
    decoded.values = keys ? decoded_key_ : decoded_value_;
    decoded.codec_norms = at::empty({count_}, at::kDouble);
    if (count_ == 0) return decoded;
    const Stored stored(packed_, host_blocks_, heads(), head);
    const at::Tensor x = entering(prepared.transform, captured[head].narrow(0, begin_, count_),
                                  head, keys ? stored.norms(count_) : at::Tensor());
    decoded.codec_norms.copy_(x.square().sum(-1).sqrt_());
    decoded.saturated = count_saturated(x, stored.params(keys, count_), specs_[keys ? 0 : 1]);
    return decoded;
  }

  void attend(int64_t sequence, int64_t head, const Decoded& key, const Decoded&,
              AttentionErrors& errors) override {
    constexpr int64_t kWeights = 1 << 19;  // elements of temporaries
    open(sequence);
    const at::Tensor outputs = attended(head);
    const int64_t probes = sample().positions.size(0);
    const int64_t some = std::max<int64_t>(1, kWeights / sample().tokens());
    const at::Tensor k = k_[head].to(at::kFloat);
    SingleProbes part;
    part.k_read = key.values;
    part.v = v_[head].to(at::kFloat);
    part.begin = begin_;
    for (int64_t j = 0; j < sample().group(); ++j) {
      const int64_t q_head = head * sample().group() + j;
      for (int64_t first = 0; first < probes; first += some) {
        const int64_t count = std::min(some, probes - first);
        part.q = sample().q[sequence][q_head].narrow(0, first, count).to(at::kFloat);
        part.positions = limits_.positions.narrow(0, first, count);
        part.unread = unread_.narrow(0, first, count);
        const ExactSingle exact = context_.exact_single(sequence, q_head, k, part.v, first, count);
        auto found = key_errors(exact, part);
        if (!found) found = key_errors_in_float64(sequence, q_head, first, count, key);
        const at::Tensor output = outputs[j].narrow(0, first, count).to(at::kDouble);
        found->value_error = output - (found->output + found->key_error);
        errors.add(sequence, q_head, first, *found);
      }
    }
  }

  SideBytes bytes(WhichSide side) override {
    const bool keys = side == WhichSide::key;
    const calibrate::PreparedSide& prepared = keys ? method_.key : method_.value;
    SideBytes bytes = captured_bytes(prepared, sample().k.sizes(), sample().dtype);
    if (prepared.passthrough) return bytes;
    const kernels::Format& format = packed_.format;
    const kernels::SideFormat& held = keys ? format.key : format.value;
    const int64_t kinds = kernels::stores_zero(held) ? 2 : 1;
    const bool per_channel = held.axis == kernels::Axis::channel;
    const int64_t params = kinds * (per_channel ? dim() : dim() / held.group);
    bytes.codes.row_bits = heads() * dim() * held.bits;
    bytes.params = {.row_tokens = per_channel ? held.group : 1,
                    .row_bits = heads() * params * kernels::size_of(held.params) * 8};
    if (keys && format.norm != kernels::Norm::none) {
      const int64_t norms = format.norm == kernels::Norm::heads ? 1 : heads();
      bytes.scales.row_bits = norms * kernels::size_of(format.norm_type) * 8;
    }
    return bytes;
  }

  int64_t padding(int64_t tokens) const override {
    const cache::WindowRows rows = cache::window_rows(packed_.rule, tokens, /*step_tokens=*/1);
    return sample().batch() * cache::sequence_bytes(packed_, heads(), tokens, rows).padding;
  }

 private:
  const data::Sample& sample() const { return context_.sample(); }
  int64_t heads() const { return sample().kv_heads(); }
  int64_t dim() const { return sample().head_dim(); }
  int64_t block_bytes() const { return kernels::layout_of(packed_.format).bytes; }

  /// A view of one sequence whose windows are its captured rows; of all heads, or of one.
  CacheView view(int64_t head) const {
    CacheView view;
    view.format = packed_.format;
    view.rule = packed_.rule;
    view.rule.sink = static_cast<int>(std::min<int64_t>(packed_.rule.sink, sample().tokens()));
    view.batch = 1;
    view.kv_heads = static_cast<int>(head < 0 ? heads() : 1);
    view.pool =
        static_cast<std::uint8_t*>(pool_.get()) + std::max<int64_t>(head, 0) * block_bytes();
    view.block_table = static_cast<const std::int32_t*>((head < 0 ? table_ : head_table_).get());
    const int64_t first = std::max<int64_t>(head, 0) * sample().tokens() * dim();
    view.sink_key = view.recent_key = static_cast<std::uint16_t*>(placed_k_.get()) + first;
    view.sink_value = view.recent_value = static_cast<std::uint16_t*>(placed_v_.get()) + first;
    view.sink_capacity = view.recent_capacity = static_cast<int>(sample().tokens());
    view.tokens = static_cast<const std::int32_t*>(held_.get());
    return view;
  }

  /// The same with the whole span as history, whatever the windows.
  CacheView span_view(int64_t head) const {
    CacheView span = view(head);
    span.rule = {.flush = kernels::Flush::whole,
                 .sink = static_cast<int>(begin_),
                 .recent = 0,
                 .group = packed_.rule.group};
    span.table_stride = blocks_;
    return span;
  }

  /// Encodes a sequence. Later calls are about it.
  void open(int64_t sequence) {
    if (sequence == sequence_) return;
    sequence_ = sequence;
    head_ = -1;
    k_ = sample().k[sequence].contiguous();
    v_ = sample().v[sequence].contiguous();
    placed_k_ = engine_->place(k_);
    placed_v_ = engine_->place(v_);
    if (count_ == 0) return;
    kernels::TokenSource source;
    source.key = placed_k_.get();
    source.value = placed_v_.get();
    source.type = packed_.format.window;
    source.head_stride = sample().tokens() * dim();
    source.token_stride = dim();
    engine_->encode(span_view(-1), spec_.encode(), source, kernels::kAllTokens,
                    static_cast<int>(sample().tokens()), nullptr);
    host_pool_ = at::empty({blocks_ * heads() * block_bytes()}, at::kByte);
    engine_->read(host_pool_.data_ptr(), pool_.get(), host_pool_.numel());
    host_blocks_ = host_pool_.const_data_ptr<std::uint8_t>();
  }

  void decode_head(int64_t head) {
    head_ = head;
    decoded_key_ = at::empty({count_, dim()}, at::kFloat);
    decoded_value_ = at::empty({count_, dim()}, at::kFloat);
    if (count_ == 0) return;
    const auto bytes = static_cast<int64_t>(decoded_key_.nbytes());
    const Memory key = engine_->allocate(bytes);
    const Memory value = engine_->allocate(bytes);
    const kernels::EncodeSpec spec = spec_.encode(head);
    engine_->dequantize(span_view(head), &spec, key.get(), value.get(), kernels::Type::f32, count_);
    engine_->read(decoded_key_.data_ptr(), key.get(), bytes);
    engine_->read(decoded_value_.data_ptr(), value.get(), bytes);
  }

  /// Outputs of all probes of a KV head's query heads, float32 [group, P, d]: the probes are a
  /// batch of sequences that share blocks and windows and differ in how many tokens they hold.
  at::Tensor attended(int64_t head) const {
    const int64_t group = sample().group();
    if (auto reason = cache::heads_refusal(sample().q_heads(), heads())) throw Unsupported(*reason);
    const at::Tensor query =
        sample().q[sequence_].narrow(0, head * group, group).transpose(0, 1).contiguous();
    const Memory placed = engine_->place(query);
    const Memory output = engine_->allocate(query.numel() * 4);
    CacheView probes = view(head);
    probes.batch = static_cast<int>(query.size(0));
    probes.tokens = static_cast<const std::int32_t*>(held_at_probes_.get());
    kernels::AttendArgs args;
    args.query = placed.get();
    args.query_type = cache::element_type(query);
    args.q_heads = static_cast<int>(group);
    args.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(dim())));
    if (packed_.quantized) spec_.fill(args, head);
    args.output = output.get();
    args.output_type = kernels::Type::f32;
    engine_->plan_attend(probes, args, static_cast<int>(sample().tokens()))(nullptr);
    at::Tensor rows = at::empty(query.sizes(), at::kFloat);
    engine_->read(rows.data_ptr(), output.get(), static_cast<int64_t>(rows.nbytes()));
    return rows.transpose(0, 1);
  }

  /// Errors by the keys where float32 does not do, from the same decoded keys.
  ProbeErrors key_errors_in_float64(int64_t sequence, int64_t q_head, int64_t first, int64_t count,
                                    const Decoded& key) const {
    const int64_t head = q_head / sample().group();
    const auto part = [&](const at::Tensor& of) { return of.narrow(0, first, count); };
    attention::HeadCache cache;
    cache.begin = begin_;
    cache.k = k_[head].to(at::kDouble);
    cache.v = v_[head].to(at::kDouble);
    if (key.values.defined()) cache.k_read = key.values.to(at::kDouble);
    cache.key_boundary = part(limits_.key);
    const attention::Exact exact = context_.exact(sequence, q_head, cache.k, cache.v, first, count);
    return probe_errors(
        exact, attention::cached_attention(part(sample().q[sequence][q_head]).to(at::kDouble),
                                           cache, exact, part(limits_.positions)));
  }

  const SampleContext& context_;
  const calibrate::Prepared& method_;
  const method::Recipe& recipe_;
  PackedFormat packed_;
  std::shared_ptr<const cache::Engine> engine_;
  cache::PackedSpec spec_;
  int64_t begin_;
  int64_t count_;  // tokens of the span
  int64_t blocks_ = 0;
  ProbeLimits limits_;
  quant::UniformSpec specs_[2];  // keys, values
  at::Tensor unread_;            // bool [P, n]
  Memory pool_, table_, head_table_, held_, held_at_probes_;

  int64_t sequence_ = -1;
  at::Tensor k_, v_;  // of the sequence, [Hkv, T, d]
  Memory placed_k_, placed_v_;
  at::Tensor host_pool_;
  const std::uint8_t* host_blocks_ = nullptr;
  int64_t head_ = -1;
  at::Tensor decoded_key_, decoded_value_;
};

}  // namespace

std::unique_ptr<Readback> make_packed_readback(const std::string& backend,
                                               const SampleContext& context,
                                               const calibrate::Prepared& method,
                                               const method::Recipe& recipe,
                                               const cache::Schedule& schedule) {
  return std::make_unique<PackedReadback>(backend, context, method, recipe, schedule);
}

}  // namespace kvlab::metrics
