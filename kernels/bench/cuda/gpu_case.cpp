#include "gpu_case.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <thread>

#include "kvlab/kernels/cpu.h"
#include "random_numbers.h"
#include "speed/packed_spec.h"
#include "traffic.h"

namespace kvlab::bench {
namespace {

using namespace kernels;

constexpr std::int64_t kAlign = 256;

std::int64_t align(std::int64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

int threads() { return static_cast<int>(std::max(1U, std::thread::hardware_concurrency())); }

template <class T>
std::vector<T> download(const void* device, std::int64_t count) {
  std::vector<T> host(static_cast<size_t>(count));
  cuda::copy_out(host.data(), device, count * static_cast<std::int64_t>(sizeof(T)));
  return host;
}

std::vector<std::int32_t> lengths_of(const GpuShape& shape) {
  const int unit = block_tokens(shape.format);
  std::vector<std::int32_t> lengths(static_cast<size_t>(shape.batch), shape.tokens);
  if (!shape.unequal) return lengths;
  for (int b = 0; b < shape.batch; ++b) {
    const double at = shape.batch > 1 ? static_cast<double>(b) / (shape.batch - 1) : 0.5;
    lengths[static_cast<size_t>(b)] =
        static_cast<int>(std::lround(shape.tokens * (0.75 + 0.5 * at) / unit)) * unit;
  }
  return lengths;
}

WindowRule rule_of(const GpuShape& shape) {
  WindowRule rule;
  rule.flush = shape.sink + shape.recent > 0 ? Flush::block : Flush::whole;
  rule.sink = shape.sink;
  rule.recent = shape.recent;
  rule.group = speed::window_group(shape.format);
  return rule;
}

double norm_of(const std::vector<float>& x) {
  return std::sqrt(std::inner_product(x.begin(), x.end(), x.begin(), 0.0));
}

/// ‖a − b‖ / ‖b‖.
double relative_error(std::vector<float> a, const std::vector<float>& b) {
  for (size_t i = 0; i < a.size(); ++i) a[i] -= b[i];
  return norm_of(a) / norm_of(b);
}

}  // namespace

struct GpuCase::HostCache {
  std::vector<std::uint8_t> memory;
  std::vector<std::int32_t> table;
  std::int32_t tokens = 0;
  CacheView view;  // points into the above
};

GpuCase::GpuCase(const GpuShape& shape, int copies, bool many_sources)
    : shape_(shape), lengths_(lengths_of(shape)) {
  const Format& format = shape.format;
  most_tokens_ = *std::max_element(lengths_.begin(), lengths_.end());
  spec_ = host_spec_ = speed::spec_of(format, shape.rotation);
  if (shape.rotation == Rotation::Kind::dense) {
    matrix_ = random_rotation(format.dim);
    device_matrix_ = cuda::upload(matrix_);
    spec_.key.rotation.matrix = spec_.value.rotation.matrix =
        static_cast<const float*>(device_matrix_.get());
    host_spec_.key.rotation.matrix = host_spec_.value.rotation.matrix = matrix_.data();
  }
  make_tables();

  const std::int64_t numbers = std::int64_t{2} * shape.batch * shape.kv_heads * most_tokens_ *
                               format.dim;  // keys, then values
  for (int i = 0; i < (many_sources ? copies : 1); ++i) {
    sources_.push_back(cuda::allocate(2 * numbers));
    fill_normal(sources_.back().get(), numbers, static_cast<std::uint64_t>(i) + 1, nullptr);
  }
  for (int i = 0; i < copies; ++i) copies_.push_back(cuda::allocate(copy_bytes_));
  const std::int64_t query = std::int64_t{shape.batch} * shape.q_heads * format.dim;
  query_ = cuda::allocate(2 * query);
  output_ = cuda::allocate(4 * query);
  fill_normal(query_.get(), query, 77, nullptr);

  cuda::write_windows(view(0), token_source(source(0)), kAllTokens, most_tokens_, nullptr);
  encode(0, nullptr);
  for (int i = 1; i < copies; ++i) {
    cuda::copy_within(copies_[static_cast<size_t>(i)].get(), copies_[0].get(), copy_bytes_,
                      nullptr);
  }
  plan_ = cuda::plan_attend(view(0), attend_args(), most_tokens_, cuda::device(),
                            shape.unequal ? cuda::Lengths::unlike : cuda::Lengths::alike);
  scratch_ = cuda::allocate(plan_.scratch_bytes);
  cuda::schedule(plan_, view(0), scratch_.get(), nullptr);
}

void GpuCase::make_tables() {
  const Format& format = shape_.format;
  const int per_block = block_tokens(format);
  pages_ = (most_tokens_ + per_block - 1) / per_block;
  const int all = pages_ * shape_.batch;
  table_ = permutation(all);
  if (!shape_.permuted) std::iota(table_.begin(), table_.end(), 0);
  device_lengths_ = cuda::upload(lengths_);
  device_table_ = cuda::upload(table_);

  view_.format = format;
  view_.rule = rule_of(shape_);
  view_.batch = shape_.batch;
  view_.kv_heads = shape_.kv_heads;
  view_.block_table = static_cast<const std::int32_t*>(device_table_.get());
  view_.table_stride = pages_;
  view_.tokens = static_cast<const std::int32_t*>(device_lengths_.get());
  if (shape_.sink + shape_.recent > 0) {
    view_.sink_capacity = shape_.sink;
    view_.recent_capacity = recent_capacity(view_.rule, 1);
  }
  view_.sink_stride = std::int64_t{shape_.kv_heads} * view_.sink_capacity * format.dim;
  view_.recent_stride = std::int64_t{shape_.kv_heads} * view_.recent_capacity * format.dim;
  pool_bytes_ = std::int64_t{all} * shape_.kv_heads * layout_of(format).bytes;
  window_bytes_[0] = align(2 * shape_.batch * view_.sink_stride);
  window_bytes_[1] = align(2 * shape_.batch * view_.recent_stride);
  copy_bytes_ = align(pool_bytes_) + 2 * (window_bytes_[0] + window_bytes_[1]);
}

void GpuCase::place(CacheView& view, std::uint8_t* base) const {
  view.pool = base;
  std::uint8_t* at = base + align(pool_bytes_);
  const auto next = [&](std::int64_t bytes) {
    auto* window = reinterpret_cast<std::uint16_t*>(at);
    at += bytes;
    return window;
  };
  view.sink_key = next(window_bytes_[0]);
  view.sink_value = next(window_bytes_[0]);
  view.recent_key = next(window_bytes_[1]);
  view.recent_value = next(window_bytes_[1]);
}

CacheView GpuCase::view(int copy) const {
  CacheView view = view_;
  place(view, static_cast<std::uint8_t*>(copies_[static_cast<size_t>(copy)].get()));
  return view;
}

TokenSource GpuCase::token_source(const void* tokens) const {
  const std::int64_t head = std::int64_t{most_tokens_} * shape_.format.dim;
  const std::int64_t sequence = shape_.kv_heads * head;
  return {tokens,     static_cast<const std::uint16_t*>(tokens) + shape_.batch * sequence,
          Type::bf16, sequence,
          head,       shape_.format.dim};
}

void GpuCase::encode(int copy, Stream stream) const {
  cuda::encode(view(copy), spec_, token_source(source(copy)), kAllTokens, most_tokens_, stream);
}

AttendArgs GpuCase::attend_args() const {
  AttendArgs args;
  args.query = query_.get();
  args.query_type = Type::bf16;
  args.q_heads = shape_.q_heads;
  args.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(shape_.format.dim)));
  args.key_rotation = spec_.key.rotation;
  args.value_rotation = spec_.value.rotation;
  args.output = output_.get();
  args.output_type = Type::f32;
  return args;
}

void GpuCase::attend(int copy, Stream stream) const {
  cuda::attend(plan_, view(copy), attend_args(), scratch_.get(), stream);
}

void GpuCase::dequantize(int copy, Stream stream) {
  const std::int64_t side =
      std::int64_t{shape_.batch} * shape_.kv_heads * most_tokens_ * shape_.format.dim;
  if (!tokens_out_) tokens_out_ = cuda::allocate(4 * side);
  auto* key = static_cast<std::uint16_t*>(tokens_out_.get());
  cuda::dequantize(view(copy), &spec_, key, key + side, Type::bf16, most_tokens_, stream);
}

double GpuCase::source_bytes() const {
  const double tokens = std::accumulate(lengths_.begin(), lengths_.end(), 0.0);
  return 4.0 * tokens * shape_.kv_heads * shape_.format.dim;
}

double GpuCase::cache_bytes() const {
  const double block = payload_bytes(shape_.format, shape_.kv_heads) / block_tokens(shape_.format);
  double bytes = 0;
  for (const std::int32_t tokens : lengths_) {
    const HistoryEnds ends = history_ends(view_.rule, tokens);
    const int history = ends.key - history_begin(view_, tokens);
    bytes += history * block + 4.0 * (tokens - history) * shape_.format.dim;
  }
  return bytes * shape_.kv_heads;
}

GpuCase::HostCache GpuCase::host_cache(int sequence) const {
  const Format& format = shape_.format;
  const std::int64_t page = std::int64_t{shape_.kv_heads} * layout_of(format).bytes;
  HostCache host;
  host.tokens = lengths_[static_cast<size_t>(sequence)];
  host.table.resize(static_cast<size_t>(pages_));
  std::iota(host.table.begin(), host.table.end(), 0);
  const std::int64_t row = std::int64_t{shape_.kv_heads} * format.dim;
  const std::int64_t windows = 4 * (view_.sink_stride + std::max(view_.recent_stride, row));
  host.memory.resize(static_cast<size_t>(pages_ * page + windows + kAlign));
  const auto address = reinterpret_cast<std::uintptr_t>(host.memory.data());
  std::uint8_t* at = host.memory.data() + (kAlign - address % kAlign) % kAlign;

  const CacheView device = view(0);
  host.view = view_;
  host.view.batch = 1;
  host.view.pool = at;
  host.view.block_table = host.table.data();
  // Pages that lie together come together.
  const std::int32_t* table = table_.data() + std::int64_t{sequence} * pages_;
  for (int i = 0; i < pages_;) {
    int end = i + 1;
    while (end < pages_ && table[end] == table[end - 1] + 1) ++end;
    cuda::copy_out(at + i * page, device.pool + table[i] * page, (end - i) * page);
    i = end;
  }
  at += pages_ * page;
  const auto window = [&](const std::uint16_t* from, std::int64_t stride) {
    auto* to = reinterpret_cast<std::uint16_t*>(at);
    cuda::copy_out(to, from + sequence * stride, 2 * stride);
    at += 2 * stride;
    return to;
  };
  host.view.sink_key = window(device.sink_key, device.sink_stride);
  host.view.sink_value = window(device.sink_value, device.sink_stride);
  host.view.recent_key = window(device.recent_key, device.recent_stride);
  host.view.recent_value = window(device.recent_value, device.recent_stride);
  // The CPU wants a ring even where nothing is in it.
  host.view.recent_capacity = std::max(view_.recent_capacity, 1);
  return host;
}

std::string GpuCase::wrong_attention() const {
  attend(0, nullptr);
  const std::int64_t row = std::int64_t{shape_.q_heads} * shape_.format.dim;
  for (const int sequence : {0, shape_.batch - 1}) {
    const auto ours =
        download<float>(static_cast<const float*>(output_.get()) + sequence * row, row);
    const auto query = download<std::uint16_t>(
        static_cast<const std::uint16_t*>(query_.get()) + sequence * row, row);
    std::vector<float> right(ours.size());
    HostCache host = host_cache(sequence);
    host.view.tokens = &host.tokens;
    AttendArgs args = attend_args();
    args.query = query.data();
    args.key_rotation = host_spec_.key.rotation;
    args.value_rotation = host_spec_.value.rotation;
    args.output = right.data();
    cpu::attend(host.view, args, threads());
    constexpr double kMost = 2e-3;
    const double error = relative_error(ours, right);
    if (!(error < kMost)) {
      return fmt::format("attention of sequence {} is {:.2g} away from the CPU's", sequence, error);
    }
  }
  return {};
}

std::string GpuCase::wrong_codes() const {
  HostCache ours = host_cache(0);
  ours.view.tokens = &ours.tokens;
  HostCache right = host_cache(0);
  right.view.tokens = &right.tokens;
  std::fill(right.memory.begin(), right.memory.end(), 0);
  const std::int64_t numbers =
      std::int64_t{2} * shape_.batch * shape_.kv_heads * most_tokens_ * shape_.format.dim;
  const auto tokens = download<std::uint16_t>(source(0), numbers);
  cpu::encode(right.view, host_spec_, token_source(tokens.data()), kAllTokens, threads());

  const auto side = static_cast<size_t>(numbers / 2 / shape_.batch);
  std::vector<float> a(2 * side), b(2 * side);
  cpu::dequantize(ours.view, nullptr, a.data(), a.data() + side, Type::f32, most_tokens_,
                  threads());
  cpu::dequantize(right.view, nullptr, b.data(), b.data() + side, Type::f32, most_tokens_,
                  threads());
  // Ties and the last bit of a parameter may fall either way.
  constexpr float kApart = 1e-3f;
  constexpr double kMost = 1e-3;
  double apart = 0;
  for (size_t i = 0; i < a.size(); ++i) apart += !(std::fabs(a[i] - b[i]) < kApart);
  apart /= static_cast<double>(a.size());
  return apart < kMost ? "" : fmt::format("a share of {:.2g} of the codes is not the CPU's", apart);
}

std::string GpuCase::wrong_tokens() {
  dequantize(0, nullptr);
  const auto side = std::int64_t{shape_.kv_heads} * most_tokens_ * shape_.format.dim;
  HostCache host = host_cache(0);
  host.view.tokens = &host.tokens;
  std::vector<float> right(static_cast<size_t>(2 * side));
  cpu::dequantize(host.view, &host_spec_, right.data(), right.data() + side, Type::f32,
                  most_tokens_, threads());
  std::vector<float> ours;
  for (const int i : {0, shape_.batch}) {
    for (const std::uint16_t bits : download<std::uint16_t>(
             static_cast<const std::uint16_t*>(tokens_out_.get()) + i * side, side)) {
      ours.push_back(from_bf16(bits));
    }
  }
  constexpr double kMost = 3e-3;  // bf16 rounds by up to 2⁻⁹
  const double error = relative_error(ours, right);
  return error < kMost ? "" : fmt::format("tokens are {:.2g} away from the CPU's", error);
}

}  // namespace kvlab::bench
