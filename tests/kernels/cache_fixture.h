#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include "kvlab/kernels/cpu.h"

/// A packed cache with memory of its own for tests. All of it begins as 0xff bytes, NaN in every
/// type, so that whatever is read before it is written shows. Pages are handed out in a random
/// order.
namespace plain {

namespace kn = kvlab::kernels;

struct Shape {
  kn::Format format = kn::f1();
  kn::WindowRule rule = {};
  int kv_heads = 2;
  int max_tokens = 512;
  int step_tokens = 1;
};

class Cache {
 public:
  Cache(const Shape& shape, std::vector<int> tokens)
      : shape_(shape), tokens_(tokens.begin(), tokens.end()) {
    const kn::Format& format = shape.format;
    const auto batch = static_cast<int>(tokens.size());
    const int per_block = kn::block_tokens(format);
    blocks_ = (shape.max_tokens + per_block - 1) / per_block;
    const int pages = std::max(1, batch * blocks_);
    table_.resize(static_cast<size_t>(pages));
    std::iota(table_.begin(), table_.end(), 0);
    std::mt19937 order(7);
    std::shuffle(table_.begin(), table_.end(), order);
    block_bytes_ = kn::layout_of(format).bytes;
    pool_.assign(static_cast<size_t>(pages) * static_cast<size_t>(shape.kv_heads * block_bytes_),
                 0xff);
    const int ring = kn::recent_capacity(shape.rule, shape.step_tokens);
    const auto rows = [&](int capacity) {
      return std::vector<std::uint16_t>(
          static_cast<size_t>(batch * shape.kv_heads * capacity * format.dim), 0xffff);
    };
    sink_key_ = sink_value_ = rows(shape.rule.sink);
    recent_key_ = recent_value_ = rows(ring);
    view_.format = format;
    view_.rule = shape.rule;
    view_.batch = batch;
    view_.kv_heads = shape.kv_heads;
    view_.pool = pool_.data();
    view_.block_table = table_.data();
    view_.table_stride = blocks_;
    view_.sink_key = sink_key_.data();
    view_.sink_value = sink_value_.data();
    view_.recent_key = recent_key_.data();
    view_.recent_value = recent_value_.data();
    view_.sink_capacity = shape.rule.sink;
    view_.recent_capacity = ring;
    view_.sink_stride = static_cast<std::int64_t>(shape.kv_heads) * shape.rule.sink * format.dim;
    view_.recent_stride = static_cast<std::int64_t>(shape.kv_heads) * ring * format.dim;
    view_.tokens = tokens_.data();
  }
  Cache(const Cache&) = delete;

  kn::CacheView& view() { return view_; }
  const kn::CacheView& view() const { return view_; }
  std::vector<std::int32_t>& tokens() { return tokens_; }
  const Shape& shape() const { return shape_; }

  /// The block's bytes.
  std::vector<std::uint8_t> block(int sequence, int head, int index) const {
    const std::uint8_t* begin = kn::block_at(view_, block_bytes_, sequence, head, index);
    return {begin, begin + block_bytes_};
  }
  std::vector<std::uint8_t>& pool() { return pool_; }

 private:
  Shape shape_;
  int blocks_ = 0;
  int block_bytes_ = 0;
  std::vector<std::int32_t> tokens_;
  std::vector<std::int32_t> table_;
  std::vector<std::uint8_t> pool_;
  std::vector<std::uint16_t> sink_key_, sink_value_, recent_key_, recent_value_;
  kn::CacheView view_;
};

/// Captured keys and values [batch, kv_heads, n, d] of bf16.
struct Captured {
  std::vector<std::uint16_t> key, value;
  int batch = 0, kv_heads = 0, n = 0, dim = 0;

  /// The source whose row 0 is token `first`.
  kn::TokenSource from(int first) const {
    const std::int64_t skip = static_cast<std::int64_t>(first) * dim;
    return {key.data() + skip,
            value.data() + skip,
            kn::Type::bf16,
            static_cast<std::int64_t>(kv_heads) * n * dim,
            static_cast<std::int64_t>(n) * dim,
            dim};
  }
  size_t row(int b, int h, int t) const {
    return (static_cast<size_t>(b * kv_heads + h) * static_cast<size_t>(n) +
            static_cast<size_t>(t)) *
           static_cast<size_t>(dim);
  }
};

/// Normal keys with a channel and a token that stand out, normal values.
inline Captured captured(int batch, int kv_heads, int n, int dim, unsigned seed = 1) {
  Captured x;
  x.batch = batch;
  x.kv_heads = kv_heads;
  x.n = n;
  x.dim = dim;
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal;
  const auto count = static_cast<size_t>(batch) * static_cast<size_t>(kv_heads) *
                     static_cast<size_t>(n) * static_cast<size_t>(dim);
  x.key.resize(count);
  x.value.resize(count);
  for (size_t i = 0; i < count; ++i) {
    const size_t channel = i % static_cast<size_t>(dim);
    const size_t token = i / static_cast<size_t>(dim) % static_cast<size_t>(n);
    const float size = token % 61 == 3 ? 0.05f : 1.0f;
    x.key[i] = kn::to_bf16(size * (normal(engine) + (channel == 5 ? 4.0f : 0.0f)));
    x.value[i] = kn::to_bf16(normal(engine) + 0.25f);
  }
  return x;
}

/// A grid for a side's format.
inline kn::Grid grid_of(const kn::SideFormat& side) {
  kn::Grid grid;
  grid.bits = side.bits;
  grid.zero = side.zero;
  grid.params = side.params;
  const float levels[4] = {-1.0f, -0.3f, 0.3f, 1.0f};
  for (int i = 0; side.zero == kn::Zero::codebook && i < 4; ++i) grid.levels[i] = levels[i];
  return grid;
}

inline kn::EncodeSpec spec_of(const kn::Format& format,
                              kn::Rotation::Kind rotation = kn::Rotation::Kind::none) {
  kn::EncodeSpec spec;
  spec.key.grid = grid_of(format.key);
  spec.value.grid = grid_of(format.value);
  spec.key.rotation.kind = spec.value.rotation.kind = rotation;
  spec.key.scale = format.norm == kn::Norm::head    ? kn::TokenScale::l2_head
                   : format.norm == kn::Norm::heads ? kn::TokenScale::l2_heads
                                                    : kn::TokenScale::none;
  return spec;
}

/// The levels of codebooks, told to the cache.
inline void set_levels(kn::CacheView& view, const kn::EncodeSpec& spec) {
  std::copy_n(spec.key.grid.levels, 4, view.key_levels);
  std::copy_n(spec.value.grid.levels, 4, view.value_levels);
}

/// All tokens at once.
inline void prefill(Cache& cache, const kn::EncodeSpec& spec, const Captured& x, int threads = 2) {
  set_levels(cache.view(), spec);
  kn::cpu::write_windows(cache.view(), x.from(0), kn::kAllTokens, threads);
  kn::cpu::encode(cache.view(), spec, x.from(0), kn::kAllTokens, threads);
}

/// What the cache reads for each token, float64 [tokens, dim] of one sequence and head: decoded
/// history, captured tokens elsewhere.
struct Read {
  std::vector<double> key, value;
};

inline Read read(const Cache& cache, const kn::EncodeSpec& spec, const Captured& x, int b, int h) {
  const kn::CacheView& view = cache.view();
  const int dim = view.format.dim;
  const auto capacity = static_cast<std::int64_t>(cache.shape().max_tokens);
  const auto count = static_cast<size_t>(view.batch * view.kv_heads * capacity * dim);
  std::vector<float> key(count), value(count);
  kn::cpu::dequantize(view, &spec, key.data(), value.data(), kn::Type::f32, capacity, 2);
  const int tokens = view.tokens[b];
  const int begin = kn::history_begin(view, tokens);
  const kn::HistoryEnds ends = kn::history_ends(view.rule, tokens);
  Read result;
  const auto base = static_cast<size_t>((b * view.kv_heads + h) * capacity * dim);
  for (int t = 0; t < tokens; ++t) {
    const size_t decoded = base + static_cast<size_t>((t - begin) * dim);
    for (int c = 0; c < dim; ++c) {
      const size_t at = x.row(b, h, t) + static_cast<size_t>(c);
      const bool old_key = t >= begin && t < ends.key;
      const bool old_value = t >= begin && t < ends.value;
      result.key.push_back(old_key ? key[decoded + static_cast<size_t>(c)]
                                   : kn::from_bf16(x.key[at]));
      result.value.push_back(old_value ? value[decoded + static_cast<size_t>(c)]
                                       : kn::from_bf16(x.value[at]));
    }
  }
  return result;
}

/// Attention by the definition in float64: output [dim] and log-sum-exp of one query over tokens 0
/// … seen − 1.
struct Attended {
  std::vector<double> output;
  double log_sum_exp;
};

inline Attended attended(const float* query, const Read& tokens, int seen, int dim, double scale) {
  Attended result{std::vector<double>(static_cast<size_t>(dim), 0.0), -INFINITY};
  std::vector<double> logits;
  for (int t = 0; t < seen; ++t) {
    double sum = 0;
    for (int c = 0; c < dim; ++c) sum += query[c] * tokens.key[static_cast<size_t>(t) * dim + c];
    logits.push_back(sum * scale);
  }
  if (seen <= 0) return result;
  const double most = *std::max_element(logits.begin(), logits.end());
  double total = 0;
  for (int t = 0; t < seen; ++t) {
    const double weight = std::exp(logits[static_cast<size_t>(t)] - most);
    total += weight;
    for (int c = 0; c < dim; ++c) {
      result.output[static_cast<size_t>(c)] +=
          weight * tokens.value[static_cast<size_t>(t) * dim + c];
    }
  }
  for (double& x : result.output) x /= total;
  result.log_sum_exp = most + std::log(total);
  return result;
}

/// Attention of random queries over the cache, by the kernels and by the definition.
struct Compared {
  double error = 0;      // largest relative L2 error of a row
  double lse_error = 0;  // largest difference of log-sum-exp
};

inline Compared compare(const Cache& cache, const kn::EncodeSpec& spec, const Captured& x,
                        int q_heads, int query_tokens, float query_size = 1.0f, int threads = 2) {
  const kn::CacheView& view = cache.view();
  const int dim = view.format.dim;
  std::mt19937 engine(11);
  std::normal_distribution<float> normal(0.0f, query_size);
  const auto rows = static_cast<size_t>(view.batch) * query_tokens * q_heads;
  std::vector<float> query(rows * static_cast<size_t>(dim));
  for (float& number : query) number = normal(engine);
  std::vector<float> output(query.size(), NAN), lse(rows, NAN);
  kn::AttendArgs args;
  args.query = query.data();
  args.query_type = args.output_type = kn::Type::f32;
  args.query_tokens = query_tokens;
  args.q_heads = q_heads;
  args.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(dim)));
  args.key_rotation = spec.key.rotation;
  args.value_rotation = spec.value.rotation;
  args.key_center = spec.key.center;
  args.output = output.data();
  args.log_sum_exp = lse.data();
  kn::cpu::attend(view, args, threads);

  Compared result;
  const int group = q_heads / view.kv_heads;
  for (int b = 0; b < view.batch; ++b) {
    for (int h = 0; h < view.kv_heads; ++h) {
      const Read tokens = read(cache, spec, x, b, h);
      for (int i = 0; i < query_tokens * group; ++i) {
        const auto row =
            static_cast<size_t>(b * query_tokens + i / group) * q_heads + h * group + i % group;
        const int seen = view.tokens[b] - query_tokens + i / group + 1;
        const Attended right =
            attended(query.data() + row * static_cast<size_t>(dim), tokens, seen, dim, args.scale);
        double difference = 0;
        double size = 0;
        for (size_t c = 0; c < static_cast<size_t>(dim); ++c) {
          const double d = output[row * static_cast<size_t>(dim) + c] - right.output[c];
          difference += d * d;
          size += right.output[c] * right.output[c];
        }
        const double error = difference == 0 ? 0 : std::sqrt(difference / size);
        result.error = error > result.error || error != error ? error : result.error;
        if (right.log_sum_exp == -INFINITY) {
          if (lse[row] != -INFINITY) result.lse_error = NAN;
        } else {
          const double off = std::fabs(lse[row] - right.log_sum_exp);
          result.lse_error = off > result.lse_error || off != off ? off : result.lse_error;
        }
      }
    }
  }
  return result;
}

}  // namespace plain
