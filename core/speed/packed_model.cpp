#include "speed/packed_model.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "speed/packed_spec.h"

namespace kvlab::speed {
namespace {

using namespace kernels;

WindowRule rule_of(const CacheShape& shape) {
  return {Flush::block, shape.sink, shape.recent, window_group(shape.format)};
}

/// Bytes of one layer's parts, and blocks of a sequence.
struct Sizes {
  int pages = 0;
  std::int64_t pool = 0, sink = 0, recent = 0;  // sink, recent: of one side

  std::int64_t layer() const { return pool + 2 * (sink + recent); }
};

Sizes sizes_of(const CacheShape& shape) {
  const WindowRule rule = rule_of(shape);
  const int per_block = block_tokens(shape.format);
  const int history = history_ends(rule, shape.tokens).key - std::min(shape.sink, shape.tokens);
  const std::int64_t row = 2 * std::int64_t{shape.batch} * shape.kv_heads * shape.format.dim;
  Sizes sizes;
  sizes.pages = std::max(1, (history + per_block - 1) / per_block);
  sizes.pool =
      std::int64_t{shape.batch} * sizes.pages * shape.kv_heads * layout_of(shape.format).bytes;
  sizes.sink = row * shape.sink;
  sizes.recent = row * recent_capacity(rule, 1);
  return sizes;
}

CacheView view_of(const CacheShape& shape) {
  CacheView view;
  view.format = shape.format;
  view.rule = rule_of(shape);
  view.batch = shape.batch;
  view.kv_heads = shape.kv_heads;
  view.table_stride = sizes_of(shape).pages;
  view.sink_capacity = shape.sink;
  view.recent_capacity = recent_capacity(view.rule, 1);
  const std::int64_t row = std::int64_t{shape.kv_heads} * shape.format.dim;
  view.sink_stride = row * view.sink_capacity;
  view.recent_stride = row * view.recent_capacity;
  return view;
}

AttendArgs attend_args(const CacheShape& shape, const EncodeSpec& spec) {
  AttendArgs args;
  args.query_type = args.output_type = Type::bf16;
  args.q_heads = shape.q_heads;
  args.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(shape.format.dim)));
  args.key_rotation = spec.key.rotation;
  args.value_rotation = spec.value.rotation;
  return args;
}

}  // namespace

double PackedModel::bytes(const CacheShape& shape) {
  const Sizes sizes = sizes_of(shape);
  const double tables = 4.0 * shape.batch * (sizes.pages + 1);
  return static_cast<double>(shape.layers) * static_cast<double>(sizes.layer()) + tables;
}

double PackedModel::billed_bytes(const CacheShape& shape) {
  const int begin = std::min(shape.sink, shape.tokens);
  const int history = history_ends(rule_of(shape), shape.tokens).key - begin;
  const double block = payload_bytes(shape.format, shape.kv_heads) / block_tokens(shape.format);
  const double head = history * block + 4.0 * (shape.tokens - history) * shape.format.dim;
  return head * shape.kv_heads * shape.batch * shape.layers;
}

PackedModel::PackedModel(const CacheShape& shape, int held, const void* normals)
    : shape_(shape), spec_(spec_of(shape.format, Rotation::Kind::hadamard)) {
  const Sizes sizes = sizes_of(shape);
  CacheView view = view_of(shape);
  lengths_ = cuda::upload(std::vector<std::int32_t>(static_cast<size_t>(shape.batch), held));
  std::vector<std::int32_t> table(static_cast<size_t>(shape.batch) *
                                  static_cast<size_t>(sizes.pages));
  std::iota(table.begin(), table.end(), 0);
  table_ = cuda::upload(table);
  view.tokens = static_cast<const std::int32_t*>(lengths_.get());
  view.block_table = static_cast<const std::int32_t*>(table_.get());

  const auto* key = static_cast<const std::uint16_t*>(normals);
  const std::int64_t dim = shape.format.dim;
  const TokenSource source{key, key + held * dim, Type::bf16, 0, 0, dim};
  for (int layer = 0; layer < shape.layers; ++layer) {
    memory_.push_back(cuda::allocate(sizes.layer()));
    auto* at = static_cast<std::uint8_t*>(memory_.back().get());
    const auto next = [&](std::int64_t bytes) {
      std::uint8_t* part = at;
      at += bytes;
      return part;
    };
    view.pool = next(sizes.pool);
    view.sink_key = reinterpret_cast<std::uint16_t*>(next(sizes.sink));
    view.sink_value = reinterpret_cast<std::uint16_t*>(next(sizes.sink));
    view.recent_key = reinterpret_cast<std::uint16_t*>(next(sizes.recent));
    view.recent_value = reinterpret_cast<std::uint16_t*>(next(sizes.recent));
    layers_.push_back({view, spec_});
    cuda::write_windows(view, source, kAllTokens, held, nullptr);
    cuda::encode(view, spec_, source, kAllTokens, held, nullptr);
  }
  device_layers_ = cuda::upload(layers_);
  plan_ = cuda::plan_attend(view, attend_args(shape, spec_), shape.tokens, cuda::device());
  scratch_ = cuda::allocate(plan_.scratch_bytes);
}

void PackedModel::begin(cuda::Stream stream) const {
  cuda::advance(static_cast<std::int32_t*>(lengths_.get()), shape_.batch, 1, stream);
  cuda::flush(layers_.front(), static_cast<const cuda::Layer*>(device_layers_.get()), shape_.layers,
              1, layers_.front().cache.rule.group, stream);
}

void PackedModel::attend(int layer, const void* query, const void* key, const void* value,
                         std::int64_t stride, void* output, cuda::Stream stream) const {
  const std::int64_t dim = shape_.format.dim;
  cuda::write_windows(layers_[static_cast<size_t>(layer)].cache,
                      {key, value, Type::bf16, stride, dim, dim}, 1, 1, stream);
  attend_only(layer, query, output, stream);
}

void PackedModel::attend_only(int layer, const void* query, void* output,
                              cuda::Stream stream) const {
  AttendArgs args = attend_args(shape_, spec_);
  args.query = query;
  args.output = output;
  cuda::attend(plan_, layers_[static_cast<size_t>(layer)].cache, args, scratch_.get(), stream);
}

std::vector<double> PackedModel::time_attention(const void* query, int samples) const {
  const std::int64_t row = 2 * std::int64_t{shape_.batch} * shape_.q_heads * shape_.format.dim;
  const auto output = cuda::allocate(row);
  std::vector<double> nanoseconds = cuda::time_graph(
      [&](int layer, cuda::Stream stream) { attend_only(layer, query, output.get(), stream); },
      shape_.layers, samples);
  for (double& one : nanoseconds) one *= shape_.layers;
  return nanoseconds;
}

}  // namespace kvlab::speed
