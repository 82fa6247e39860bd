#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "cpu/check.h"
#include "cpu/clip.h"
#include "cpu/parallel.h"
#include "cpu/rotate.h"
#include "cpu/token_scale.h"
#include "cpu/windows_rows.h"
#include "kvlab/kernels/cpu.h"

namespace kvlab::kernels::cpu {
namespace {

constexpr int kMostTokens = 128;  // of a block
constexpr int kMostGroups = 8;    // of a row

/// Tokens of a block that a step moves into the history, counted from the block's first.
struct Stretch {
  int from = 0;
  int to = 0;
};

/// One sequence at one step.
struct Sequence {
  int begin = 0;  // first token behind the sink
  int first = 0;  // first token of the step
  HistoryEnds before;
  HistoryEnds after;
};

Sequence sequence_of(const CacheView& cache, int tokens, int step) {
  Sequence sequence;
  sequence.begin = history_begin(cache, tokens);
  sequence.first = step_begin(tokens, step);
  sequence.before = history_ends(cache.rule, sequence.first);
  sequence.before.key = std::max(sequence.before.key, sequence.begin);
  sequence.before.value = std::max(sequence.before.value, sequence.begin);
  sequence.after = history_ends(cache.rule, tokens);
  return sequence;
}

bool norm_survives(Rotation::Kind kind) { return kind != Rotation::Kind::dense; }

class Worker {
 public:
  Worker(const CacheView& cache, const EncodeSpec& spec, const TokenSource& source)
      : cache_(cache),
        spec_(spec),
        source_(source),
        ops_(row_ops()),
        layout_(layout_of(cache.format)),
        dim_(cache.format.dim),
        per_block_(block_tokens(cache.format)),
        rows_(static_cast<size_t>(kMostTokens) * static_cast<size_t>(dim_)),
        codes_(rows_.size()),
        scratch_(static_cast<size_t>(dim_)) {}

  /// All that the step moves into block `block` of these heads.
  void encode_block(const Sequence& sequence, int b, int block, int first_head, int end_head) {
    const int start = sequence.begin + block * per_block_;
    const auto stretch = [&](int before, int after) {
      return Stretch{std::clamp(before - start, 0, per_block_),
                     std::clamp(after - start, 0, per_block_)};
    };
    const Stretch keys = stretch(sequence.before.key, sequence.after.key);
    const Stretch values = stretch(sequence.before.value, sequence.after.value);
    const bool untouched = std::max(sequence.before.key, sequence.before.value) <= start;
    if (spec_.key.scale == TokenScale::l2_heads) sum_heads(sequence, b, start, keys);
    for (int head = first_head; head < end_head; ++head) {
      std::uint8_t* bytes = block_at(cache_, layout_.bytes, b, head, block);
      if (untouched) std::memset(bytes, 0, static_cast<size_t>(layout_.bytes));
      encode_side(sequence, b, head, start, keys, true, bytes);
      encode_side(sequence, b, head, start, values, false, bytes);
    }
  }

 private:
  const SideEncode& side(bool key) const { return key ? spec_.key : spec_.value; }

  /// Tokens handled at a time: a whole per-channel group, else a tile.
  static int pace(const SideFormat& format) {
    return format.axis == Axis::channel ? format.group : kTile;
  }

  /// Loads tokens start + from … start + to − 1, less the centre: from the source where it has
  /// them, else from the ring.
  void load(const Sequence& sequence, int b, int head, int start, Stretch tokens, bool key) {
    const void* rows[kMostTokens];
    const WindowRows ring =
        recent_rows(cache_, key ? cache_.recent_key : cache_.recent_value, b, head);
    const void* given = key ? source_.key : source_.value;
    const float* center = side(key).center;
    if (center != nullptr) center += static_cast<std::int64_t>(head) * dim_;
    // Runs of one kind: the source's type may differ from the window's.
    int done = tokens.from;
    while (done < tokens.to) {
      const bool held = given == nullptr || start + done < sequence.first;
      int count = 0;
      while (done + count < tokens.to &&
             held == (given == nullptr || start + done + count < sequence.first)) {
        const int token = start + done + count;
        rows[count++] =
            held ? ring[token] : source_row(source_, given, b, head, token - sequence.first);
      }
      ops_.load(rows, count, dim_, held ? cache_.format.window : source_.type, center,
                rows_.data() + static_cast<std::int64_t>(done - tokens.from) * dim_);
      done += count;
    }
  }

  void rotate_rows(const Rotation& rotation, int head, int count) {
    rotate(ops_, rotation, head, false, rows_.data(), count, dim_, scratch_.data());
  }

  /// Square sums over all heads of the stretch's tokens, into sums_. A rotation that keeps norms is
  /// left out, which also rounds less.
  void sum_heads(const Sequence& sequence, int b, int start, Stretch tokens) {
    const SideEncode& keys = spec_.key;
    std::fill_n(sums_, kMostTokens, 0.0);
    double measures[kTile];
    for (int from = tokens.from; from < tokens.to; from += kTile) {
      const int count = std::min(kTile, tokens.to - from);
      for (int head = 0; head < cache_.kv_heads; ++head) {
        load(sequence, b, head, start, {from, from + count}, true);
        if (!keys.scale_first && !norm_survives(keys.rotation.kind)) {
          rotate_rows(keys.rotation, head, count);
        }
        measure(ops_, keys.scale, rows_.data(), count, dim_, measures);
        for (int i = 0; i < count; ++i) sums_[from + i] += measures[i];
      }
    }
  }

  /// Takes the norms of `count` loaded rows as they stand, unless the heads' sums are there
  /// already.
  void take_norms(int from, int count) {
    const TokenScale scale = spec_.key.scale;
    double measures[kMostTokens];
    if (scale == TokenScale::l2_heads) {
      std::copy_n(sums_ + from, count, measures);
    } else {
      measure(ops_, scale, rows_.data(), count, dim_, measures);
    }
    for (int i = 0; i < count; ++i) {
      norms_[i] =
          stored_norm(measures[i], scale, cache_.format.norm_inverse, cache_.format.norm_type);
    }
  }

  void divide_by_norms(int count) {
    ops_.rescale(rows_.data(), count, dim_, norms_, !cache_.format.norm_inverse);
  }

  /// ((x − centre)·R)/scale of loaded rows, norms stored.
  void transform(const SideEncode& how, int head, int from, int count, std::uint8_t* norms) {
    if (how.scale == TokenScale::none) {
      rotate_rows(how.rotation, head, count);
      return;
    }
    const bool l2 = how.scale == TokenScale::l2_heads || how.scale == TokenScale::l2_head;
    const bool early = how.scale_first || (l2 && norm_survives(how.rotation.kind));
    if (early) take_norms(from, count);
    if (how.scale_first) divide_by_norms(count);
    rotate_rows(how.rotation, head, count);
    if (!early) take_norms(from, count);
    if (!how.scale_first) divide_by_norms(count);
    for (int i = 0; i < count; ++i) {
      store_number(norms, norm_index(from + i), cache_.format.norm_type, norms_[i]);
    }
  }

  /// Parameters of n groups from lo_ and hi_; group i is stored at index(i) of the sections.
  template <class Index>
  void store_params(const Grid& grid, int n, std::uint8_t* scale, std::uint8_t* zero, bool zeros,
                    Index index) {
    for (int i = 0; i < n; ++i) {
      // Which zero, −0 or 0, is least depends on the order of comparisons: always 0.
      const GroupParams params = params_of(grid, lo_[i] + 0.0f, hi_[i] + 0.0f);
      scale_[i] = params.scale;
      zero_[i] = params.zero;
      flat_[i] = params.flat ? 1.0f : 0.0f;
      store_number(scale, index(i), grid.params, params.scale);
      if (zeros) store_number(zero, index(i), grid.params, params.zero);
    }
  }

  void encode_side(const Sequence& sequence, int b, int head, int start, Stretch tokens, bool key,
                   std::uint8_t* block) {
    const Format& all = cache_.format;
    const SideFormat& format = key ? all.key : all.value;
    const SideEncode& how = side(key);
    std::uint8_t* scale = block + (key ? layout_.key_scale : layout_.value_scale);
    std::uint8_t* zero = block + (key ? layout_.key_zero : layout_.value_zero);
    const ParamRows params{scale_, zero_, flat_};
    for (int from = tokens.from; from < tokens.to;) {
      const int step = pace(format);
      const int count = std::min(tokens.to, from / step * step + step) - from;
      float* rows = rows_.data();
      load(sequence, b, head, start, {from, from + count}, key);
      transform(how, head, from, count, block + layout_.norm);
      clip(ops_, how, format, head, rows, count, dim_);
      if (format.axis == Axis::channel) {
        ops_.channel_ranges(rows, count, dim_, lo_, hi_);
        store_params(how.grid, dim_, scale, zero, stores_zero(format),
                     [&](int i) { return param_index(all, format, from, i); });
        ops_.channel_codes(how.grid, params, rows, count, dim_, codes_.data());
      } else {
        const int groups = dim_ / format.group;
        ops_.row_ranges(rows, count, dim_, format.group, lo_, hi_);
        store_params(how.grid, count * groups, scale, zero, stores_zero(format), [&](int i) {
          return param_index(all, format, from + i / groups, i % groups * format.group);
        });
        ops_.row_codes(how.grid, params, rows, count, dim_, format.group, codes_.data());
      }
      const auto pack = key ? ops_.pack_keys : ops_.pack_values;
      pack(codes_.data(), from, count, dim_, format.bits,
           block + (key ? layout_.key_codes : layout_.value_codes));
      from += count;
    }
  }

  const CacheView& cache_;
  const EncodeSpec& spec_;
  const TokenSource& source_;
  const RowOps& ops_;
  Layout layout_;
  int dim_;
  int per_block_;
  std::vector<float> rows_;          // [tokens at a time, dim]
  std::vector<std::uint8_t> codes_;  // the same
  std::vector<float> scratch_;       // a row
  double sums_[kMostTokens] = {};    // square sums over all heads of the block's tokens
  float norms_[kMostTokens] = {};
  // Of the groups at hand: a tile's rows, or the channels.
  static constexpr int kMostParams = 256;
  static_assert(kTile * kMostGroups <= kMostParams);
  float lo_[kMostParams] = {}, hi_[kMostParams] = {};
  float scale_[kMostParams] = {}, zero_[kMostParams] = {}, flat_[kMostParams] = {};
};

/// A block of a sequence that a step changes.
struct Item {
  int sequence;
  int block;
};

void check_ring(const CacheView& cache, const Sequence& sequence, int b, bool source_given) {
  const int oldest = std::min(sequence.before.key, sequence.before.value);
  const bool moves =
      sequence.after.key > sequence.before.key || sequence.after.value > sequence.before.value;
  const bool from_ring = !source_given || oldest < sequence.first;
  if (moves && from_ring && cache.tokens[b] - oldest > cache.recent_capacity) {
    throw std::invalid_argument("the step of sequence " + std::to_string(b) +
                                " is longer than its recent ring has room for");
  }
}

}  // namespace

void encode(const CacheView& cache, const EncodeSpec& spec, const TokenSource& source, int step,
            int threads) {
  check_cache(cache);
  check_spec(cache, spec);
  check_threads(threads);
  if ((source.key == nullptr) != (source.value == nullptr)) {
    throw std::invalid_argument("one side of the tokens to be stored is missing");
  }
  const int per_block = block_tokens(cache.format);
  std::vector<Sequence> sequences;
  std::vector<Item> items;
  std::int64_t moved = 0;
  for (int b = 0; b < cache.batch; ++b) {
    const Sequence& s = sequences.emplace_back(sequence_of(cache, cache.tokens[b], step));
    check_ring(cache, s, b, source.key != nullptr);
    const auto blocks = [&](int before, int after) {
      const int last = (after - s.begin + per_block - 1) / per_block;
      return after > before ? Stretch{(before - s.begin) / per_block, last} : Stretch{};
    };
    const Stretch keys = blocks(s.before.key, s.after.key);
    const Stretch values = blocks(s.before.value, s.after.value);
    const auto has = [](Stretch stretch, int i) { return i >= stretch.from && i < stretch.to; };
    for (int i = 0; i < std::max(keys.to, values.to); ++i) {
      if (has(keys, i) || has(values, i)) items.push_back({b, i});
    }
    moved += (s.after.key - s.before.key) + (s.after.value - s.before.value);
  }
  // A norm over all heads makes a block of all heads one piece of work.
  const int parts = spec.key.scale == TokenScale::l2_heads ? 1 : cache.kv_heads;
  const int heads = cache.kv_heads / parts;
  const std::int64_t elements = moved * cache.kv_heads * cache.format.dim;
  parallel_for(static_cast<std::int64_t>(items.size()) * parts, useful_threads(elements, threads),
               [&] {
                 return [&, worker = Worker(cache, spec, source)](std::int64_t i) mutable {
                   const Item& item = items[static_cast<size_t>(i / parts)];
                   const int head = static_cast<int>(i % parts) * heads;
                   worker.encode_block(sequences[static_cast<size_t>(item.sequence)], item.sequence,
                                       item.block, head, head + heads);
                 };
               });
}

}  // namespace kvlab::kernels::cpu
