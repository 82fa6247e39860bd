#include <cmath>
#include <limits>
#include <stdexcept>
#include <vector>

#include "cpu/attend_ops.h"
#include "cpu/check.h"
#include "cpu/decode_token.h"
#include "cpu/parallel.h"
#include "cpu/rotate.h"
#include "cpu/windows_rows.h"
#include "kvlab/kernels/cpu.h"

namespace kvlab::kernels::cpu {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
constexpr int kMostTokens = 128;  // of a block

/// History tokens of one piece of work. It is fixed, so that results depend neither on threads nor
/// on the batch; a multiple of every block.
constexpr int kChunk = 16384;

/// One piece of work: part `chunk` of `chunks` of a sequence's history. The first also takes the
/// sink, the last the recent window.
struct Item {
  int sequence;
  int head;
  int chunk;
  int chunks;
  std::int64_t partial;  // its place among the partial results
};

/// Online softmax of some rows: largest logit so far, sum of exp(logit − most), and the sums of
/// values weighted so.
struct Partial {
  float* most;    // [rows]
  float* total;   // [rows]
  float* output;  // [rows, dim]
};

class Worker {
 public:
  Worker(const CacheView& cache, const AttendArgs& args)
      : cache_(cache),
        args_(args),
        rows_ops_(row_ops()),
        ops_(attend_ops()),
        layout_(layout_of(cache.format)),
        dim_(cache.format.dim),
        per_block_(block_tokens(cache.format)),
        group_(args.q_heads / cache.kv_heads),
        rows_(args.query_tokens * group_),
        query_(size()),
        rotated_(size()),
        sums_(size()),
        centre_(static_cast<size_t>(rows_)),
        logits_(static_cast<size_t>(rows_) * kMostTokens),
        scratch_(static_cast<size_t>(dim_)) {}

  void attend(const Item& item, const Partial& partial) {
    item_ = item;
    partial_ = partial;
    tokens_ = cache_.tokens[item.sequence];
    begin_ = history_begin(cache_, tokens_);
    ends_ = history_ends(cache_.rule, tokens_);
    take_query();
    std::fill_n(partial.most, rows_, kMinusInfinity);
    std::fill_n(partial.total, rows_, 0.0f);
    std::fill_n(partial.output, size(), 0.0f);
    std::fill(sums_.begin(), sums_.end(), 0.0f);

    if (item.chunk == 0) attend_sink();
    const int history = std::max(ends_.key, ends_.value) - begin_;
    const int from = item.chunk * (kChunk / per_block_);
    const int blocks = (history + per_block_ - 1) / per_block_;
    for (int block = from; block < std::min(blocks, from + kChunk / per_block_); ++block) {
      attend_block(block, block + 1 < blocks);
    }
    const bool last = item.chunk == item.chunks - 1;
    // The last block may be partly filled: tokens behind it are full-precision on both sides.
    if (last) attend_recent(std::min(begin_ + blocks * per_block_, tokens_));

    rotate(rows_ops_, args_.value_rotation, item.head, true, sums_.data(), rows_, dim_,
           scratch_.data());
    for (size_t i = 0; i < size(); ++i) partial.output[i] += sums_[i];
  }

 private:
  size_t size() const { return static_cast<size_t>(rows_) * static_cast<size_t>(dim_); }

  /// Queries of the KV head as [query token, head of the group], scaled; and once more as the
  /// history wants them.
  void take_query() {
    for (int r = 0; r < rows_; ++r) {
      const std::int64_t head = item_.head * group_ + r % group_;
      const std::int64_t row =
          (static_cast<std::int64_t>(item_.sequence) * args_.query_tokens + r / group_) *
              args_.q_heads +
          head;
      for (int c = 0; c < dim_; ++c) {
        query_[static_cast<size_t>(r) * dim_ + c] =
            load_number(args_.query, row * dim_ + c, args_.query_type) * args_.scale;
      }
    }
    rotated_ = query_;
    rotate(rows_ops_, args_.key_rotation, item_.head, false, rotated_.data(), rows_, dim_,
           scratch_.data());
    const float* center = args_.key_center;
    if (center != nullptr) center += static_cast<std::int64_t>(item_.head) * dim_;
    for (int r = 0; r < rows_; ++r) {
      double sum = 0;
      for (int c = 0; center != nullptr && c < dim_; ++c) {
        sum += static_cast<double>(query_[static_cast<size_t>(r) * dim_ + c]) * center[c];
      }
      centre_[static_cast<size_t>(r)] = static_cast<float>(sum);
    }
  }

  float* logits(int row) { return logits_.data() + static_cast<std::int64_t>(row) * kMostTokens; }

  /// Logits of `count` full-precision tokens from `token`, `at` the place of the first among the
  /// logits.
  void window_logits(const WindowRows& rows, int token, int at, int count) {
    const std::uint16_t* address[kMostTokens];
    for (int i = 0; i < count; ++i) address[i] = rows[token + i];
    ops_.window_logits(address, count, dim_, cache_.format.window, query_.data(), rows_,
                       logits_.data() + at, kMostTokens);
  }

  void window_sums(const WindowRows& rows, int token, int at, int count) {
    const std::uint16_t* address[kMostTokens];
    for (int i = 0; i < count; ++i) address[i] = rows[token + i];
    ops_.window_sums(address, count, dim_, cache_.format.window, logits_.data() + at, kMostTokens,
                     rows_, partial_.output);
  }

  /// Turns the logits of `count` tokens from `token` into weights under the new maximum, and brings
  /// the sums so far under it.
  void weigh(int token, int count) {
    for (int r = 0; r < rows_; ++r) {
      float* row = logits(r);
      // Query i of n sees tokens up to tokens − n + i.
      const int last = tokens_ - args_.query_tokens + r / group_;
      const int seen = std::clamp(last + 1 - token, 0, count);
      std::fill(row + seen, row + count, 0.0f);
      const float most = ops_.largest(row, seen, partial_.most[r]);
      if (most == kMinusInfinity) {
        const bool unordered = std::any_of(row, row + seen, [](float x) { return x != x; });
        std::fill(row, row + seen, unordered ? std::numeric_limits<float>::quiet_NaN() : 0.0f);
        if (unordered) partial_.total[r] = std::numeric_limits<float>::quiet_NaN();
        continue;
      }
      if (most != partial_.most[r]) {
        const float shrink = std::exp(partial_.most[r] - most);
        partial_.most[r] = most;
        partial_.total[r] *= shrink;
        for (int c = 0; c < dim_; ++c) {
          sums_[static_cast<size_t>(r) * dim_ + c] *= shrink;
          partial_.output[r * dim_ + c] *= shrink;
        }
      }
      partial_.total[r] += ops_.weights(row, seen, most);
    }
  }

  void attend_sink() {
    const WindowRows keys = sink_rows(cache_, cache_.sink_key, item_.sequence, item_.head);
    const WindowRows values = sink_rows(cache_, cache_.sink_value, item_.sequence, item_.head);
    attend_window(keys, values, 0, begin_);
  }

  void attend_recent(int from) {
    const WindowRows keys = recent_rows(cache_, cache_.recent_key, item_.sequence, item_.head);
    const WindowRows values = recent_rows(cache_, cache_.recent_value, item_.sequence, item_.head);
    attend_window(keys, values, from, tokens_);
  }

  void attend_window(const WindowRows& keys, const WindowRows& values, int from, int to) {
    for (int token = from; token < to; token += per_block_) {
      const int count = std::min(per_block_, to - token);
      window_logits(keys, token, 0, count);
      weigh(token, count);
      window_sums(values, token, 0, count);
    }
  }

  /// Asks for `n` bytes of the block that comes next: blocks are too short, and too far from each
  /// other, for the processor to foresee them.
  static void prefetch(const std::uint8_t* bytes, int n) {
    for (int i = 0; i < n; i += 64) __builtin_prefetch(bytes + i, 0, 2);
  }

  /// The tokens of a block's stretch of the sequence: packed up to each side's end, from the ring
  /// behind it.
  void attend_block(int block, bool more) {
    const int start = begin_ + block * per_block_;
    const int count = std::min(per_block_, tokens_ - start);
    const int keys = std::clamp(ends_.key - start, 0, count);
    const int values = std::clamp(ends_.value - start, 0, count);
    const std::uint8_t* bytes = block_at(cache_, layout_.bytes, item_.sequence, item_.head, block);
    const std::uint8_t* next =
        more ? block_at(cache_, layout_.bytes, item_.sequence, item_.head, block + 1) : bytes;
    if (more) prefetch(next, layout_.value_codes);
    if (keys > 0) {
      ops_.packed_logits(packed_keys(cache_, layout_, bytes), keys, rotated_.data(), rows_,
                         logits_.data(), kMostTokens);
      for (int r = 0; args_.key_center != nullptr && r < rows_; ++r) {
        for (int t = 0; t < keys; ++t) logits(r)[t] += centre_[static_cast<size_t>(r)];
      }
    }
    if (keys < count) {
      window_logits(recent_rows(cache_, cache_.recent_key, item_.sequence, item_.head),
                    start + keys, keys, count - keys);
    }
    weigh(start, count);
    if (more) prefetch(next + layout_.value_codes, layout_.bytes - layout_.value_codes);
    if (values > 0) {
      ops_.packed_sums(packed_values(cache_, layout_, bytes), values, logits_.data(), kMostTokens,
                       rows_, sums_.data());
    }
    if (values < count) {
      window_sums(recent_rows(cache_, cache_.recent_value, item_.sequence, item_.head),
                  start + values, values, count - values);
    }
  }

  const CacheView& cache_;
  const AttendArgs& args_;
  const RowOps& rows_ops_;
  const AttendOps& ops_;
  Layout layout_;
  int dim_;
  int per_block_;
  int group_;                   // query heads of a KV head
  int rows_;                    // query tokens × group
  std::vector<float> query_;    // [rows, dim], scaled
  std::vector<float> rotated_;  // times R
  std::vector<float> sums_;     // Σ weight · packed value, on the codec's side of the rotation
  std::vector<float> centre_;   // [rows] query · centre
  std::vector<float> logits_;   // [rows, kMostTokens]
  std::vector<float> scratch_;  // a row
  Item item_{};
  Partial partial_{};
  int tokens_ = 0;
  int begin_ = 0;
  HistoryEnds ends_;
};

void check_args(const CacheView& cache, const AttendArgs& args) {
  const auto demand = [](bool holds, const char* sentence) {
    if (!holds) throw std::invalid_argument(sentence);
  };
  demand(args.query != nullptr && args.output != nullptr, "the queries or the output are missing");
  demand(args.query_tokens >= 1 && args.query_tokens <= 8, "1 to 8 query tokens are served");
  demand(args.q_heads > 0 && args.q_heads % cache.kv_heads == 0,
         "the query heads are not a multiple of the KV heads");
  demand(args.q_heads / cache.kv_heads <= 16, "at most 16 query heads share a KV head");
  check_rotation(args.key_rotation);
  check_rotation(args.value_rotation);
}

/// Partial results of all pieces, [rows] and [rows, dim] a piece.
class Partials {
 public:
  Partials(std::int64_t pieces, int rows, int dim)
      : rows_(rows),
        dim_(dim),
        sums_(static_cast<size_t>(pieces * rows) * 2),
        output_(static_cast<size_t>(pieces * rows * dim)) {}

  Partial operator[](std::int64_t piece) {
    float* most = sums_.data() + piece * rows_ * 2;
    return {most, most + rows_, output_.data() + piece * rows_ * dim_};
  }

 private:
  int rows_;
  int dim_;
  std::vector<float> sums_;
  std::vector<float> output_;
};

/// Merges the pieces of one sequence and KV head, in their order, and writes the results.
void merge(const CacheView& cache, const AttendArgs& args, const Item& first, Partials& partials) {
  const int dim = cache.format.dim;
  const int group = args.q_heads / cache.kv_heads;
  std::vector<float> sum(static_cast<size_t>(dim));
  for (int r = 0; r < args.query_tokens * group; ++r) {
    float most = kMinusInfinity;
    for (int i = 0; i < first.chunks; ++i) {
      most = std::fmax(most, partials[first.partial + i].most[r]);
    }
    float total = 0;
    std::fill(sum.begin(), sum.end(), 0.0f);
    for (int i = 0; i < first.chunks; ++i) {
      const Partial part = partials[first.partial + i];
      if (part.most[r] == kMinusInfinity && part.total[r] == 0) continue;
      const float weight = part.most[r] == most ? 1.0f : std::exp(part.most[r] - most);
      total += weight * part.total[r];
      for (int c = 0; c < dim; ++c)
        sum[static_cast<size_t>(c)] += weight * part.output[r * dim + c];
    }
    const std::int64_t row =
        (static_cast<std::int64_t>(first.sequence) * args.query_tokens + r / group) * args.q_heads +
        first.head * group + r % group;
    for (int c = 0; c < dim; ++c) {
      const float value = total == 0 ? 0.0f : sum[static_cast<size_t>(c)] / total;
      store_number(args.output, row * dim + c, args.output_type, value);
    }
    if (args.log_sum_exp != nullptr) {
      args.log_sum_exp[row] = total == 0 ? kMinusInfinity : most + std::log(total);
    }
  }
}

}  // namespace

void attend(const CacheView& cache, const AttendArgs& args, int threads) {
  check_cache(cache);
  check_args(cache, args);
  check_threads(threads);
  const int rows = args.query_tokens * (args.q_heads / cache.kv_heads);
  std::vector<Item> items;
  std::int64_t tokens = 0;
  for (int b = 0; b < cache.batch; ++b) {
    const HistoryEnds ends = history_ends(cache.rule, cache.tokens[b]);
    const int history = std::max(ends.key, ends.value) - history_begin(cache, cache.tokens[b]);
    const int chunks = std::max(1, (history + kChunk - 1) / kChunk);
    for (int head = 0; head < cache.kv_heads; ++head) {
      const auto at = static_cast<std::int64_t>(items.size());
      for (int chunk = 0; chunk < chunks; ++chunk) {
        items.push_back({b, head, chunk, chunks, at});
      }
    }
    tokens += cache.tokens[b];
  }
  Partials partials(static_cast<std::int64_t>(items.size()), rows, cache.format.dim);
  const std::int64_t elements = tokens * cache.kv_heads * cache.format.dim;
  parallel_for(static_cast<std::int64_t>(items.size()), useful_threads(elements, threads), [&] {
    return [&, worker = Worker(cache, args)](std::int64_t i) mutable {
      const Item& item = items[static_cast<size_t>(i)];
      worker.attend(item, partials[item.partial + item.chunk]);
    };
  });
  for (const Item& item : items) {
    if (item.chunk == 0) merge(cache, args, item, partials);
  }
}

}  // namespace kvlab::kernels::cpu
